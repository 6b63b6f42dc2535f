"""HTTP over a plain socket: what a look at engine, registry and service costs a few milliseconds with.

Looks use it (GET, HEAD), and deeds without a body (DELETE). HTTP/1.0 on purpose: the answer then comes unchunked and
ends with the connection. Where many things are looked at, answers without bodies come over few connections.
"""

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from msgspec import Struct

CONNECTS, ANSWERS = 5.0, 30.0
"""Seconds until who is there has taken a connection; and until a busy one has said something."""
SIDE_BY_SIDE = 4
"""Connections over which many things are asked for."""


class Answer(Struct, frozen=True):
    """Status code, headers (names in lower case) and body of one HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; raises ValueError if it is not."""
        return json.loads(self.body)


def ask(
    address: str | tuple[str, int],
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    within: float = ANSWERS,
) -> Answer:
    """One request to a Unix socket (a path) or to (host, port); `within` in seconds for each part of the answer.

    Raises OSError if nobody answers, ValueError if what answers is not HTTP.
    """
    host = "localhost" if isinstance(address, str) else f"{address[0]}:{address[1]}"
    lines = [f"{method} {path} HTTP/1.0", f"Host: {host}", *(f"{k}: {v}" for k, v in (headers or {}).items())]
    with _connect(address, within) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return _parse(b"".join(iter(lambda: connection.recv(65536), b"")))


def heads(
    address: tuple[str, int], paths: Sequence[str], *, headers: Mapping[str, str] | None = None, within: float = ANSWERS
) -> list[int]:
    """The status of a HEAD of each path, all asked for at once over few connections (HTTP/1.1, pipelined).

    Raises OSError if nobody answers, ValueError if what answers does not answer all.
    """
    given = [f"Host: {address[0]}:{address[1]}", *(f"{k}: {v}" for k, v in (headers or {}).items())]
    found: list[int] = [0] * len(paths)
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(address, within)) for _ in paths[:SIDE_BY_SIDE]]
        for nth, connection in enumerate(connections):
            asked = [[f"HEAD {path} HTTP/1.1", *given] for path in paths[nth :: len(connections)]]
            asked[-1].append("Connection: close")
            connection.sendall("".join("\r\n".join(lines) + "\r\n\r\n" for lines in asked).encode())
        for nth, connection in enumerate(connections):
            found[nth :: len(connections)] = _statuses(connection, len(paths[nth :: len(connections)]))
    return found


def _statuses(connection: socket.socket, wanted: int) -> list[int]:
    raw = b"".join(iter(lambda: connection.recv(65536), b""))
    answers = [_parse(part + b"\r\n\r\n").status for part in raw.split(b"\r\n\r\n")[:-1]]
    if len(answers) != wanted:
        raise ValueError(f"{len(answers)} answers to {wanted} requests")
    return answers


def _connect(address: str | tuple[str, int], within: float) -> socket.socket:
    if isinstance(address, tuple):
        # As bytes: of text, Python would import a codec for the host's name.
        host: Any = address[0].encode() if address[0].isascii() else address[0]
        connection = socket.create_connection((host, address[1]), timeout=CONNECTS)
        connection.settimeout(within)
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(within)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _parse(raw: bytes) -> Answer:
    head, separator, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not separator or not words[0].startswith("HTTP/") or len(words) < 2:
        raise ValueError(f"not an HTTP response: {raw[:40]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return Answer(int(words[1]), headers, body)
