"""HTTP over a plain socket: a look at engine, registry or service costs a few milliseconds.

Requests use HTTP/1.0 on purpose: the answer then comes without chunks, and ends with the connection. Looks at many
things get their answers, which have no bodies, over few connections.
"""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from ssl import SSLContext

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
"""The time that a whole answer may take: a busy engine is slow to begin with it."""
MAX_ANSWER_BYTES = 16 << 20
MAX_HEAD_BYTES = 64 << 10
"""The largest answer without a body."""
CHUNK_BYTES = 64 << 10
CONNECTIONS = 4
"""The number of connections for looks at many things."""

Address = str | tuple[str, int]
"""The path of a Unix socket, or host and port."""


class TooLargeError(ValueError):
    """An answer is larger than the caller allows."""


class HttpResponse(Struct, frozen=True):
    """One HTTP response."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes

    def json(self) -> Any:
        """Returns the body's JSON. Raises ValueError."""
        return json.loads(self.body)


def is_loopback(address: str) -> bool:
    """Returns whether host:port is on this machine's loopback."""
    host = address.rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")


def request(
    address: Address,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
    max_bytes: int = MAX_ANSWER_BYTES,
    tls: "SSLContext | None" = None,
) -> HttpResponse:
    """Makes one request; `timeout_s` is the time for the whole answer.

    Raises OSError if nothing answers (TimeoutError if the time is up), ValueError if the answer is not HTTP,
    TooLargeError if it is larger than `max_bytes`.
    """
    lines = [f"{method} {path} HTTP/1.0", *_header_lines(address, headers)]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    with _connect(address, timeout_s, tls) as connection:
        deadline = time.monotonic() + timeout_s
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b""))
        return _parse(_receive(connection, deadline, max_bytes))


def head_statuses(
    address: Address,
    paths: Sequence[str],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
    tls: "SSLContext | None" = None,
) -> list[int]:
    """Returns the status of a HEAD of each path, all sent at once over few connections (HTTP/1.1, pipelined).

    Raises as request(), and ValueError if the server does not answer every request.
    """
    shared = _header_lines(address, headers)
    statuses: list[int] = [0] * len(paths)
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(address, timeout_s, tls)) for _ in paths[:CONNECTIONS]]
        deadline = time.monotonic() + timeout_s
        for index, connection in enumerate(connections):
            requests = [[f"HEAD {path} HTTP/1.1", *shared] for path in paths[index :: len(connections)]]
            requests[-1].append("Connection: close")
            connection.sendall("".join("\r\n".join(lines) + "\r\n\r\n" for lines in requests).encode())
        for index, connection in enumerate(connections):
            count = len(paths[index :: len(connections)])
            statuses[index :: len(connections)] = _receive_statuses(connection, count, deadline)
    return statuses


def _header_lines(address: Address, headers: Mapping[str, str] | None) -> list[str]:
    if isinstance(address, str):
        host = "localhost"
    else:
        host = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
    return [f"Host: {host}", *(f"{name}: {value}" for name, value in (headers or {}).items())]


def _receive_statuses(connection: socket.socket, count: int, deadline: float) -> list[int]:
    raw = _receive(connection, deadline, count * MAX_HEAD_BYTES)
    answers = [_parse(part + b"\r\n\r\n").status for part in raw.split(b"\r\n\r\n")[:-1]]
    if len(answers) != count:
        raise ValueError(f"{len(answers)} answers to {count} requests")
    return answers


def _receive(connection: socket.socket, deadline: float, max_bytes: int) -> bytes:
    """Returns all that comes until the connection ends."""
    chunks: list[bytes] = []
    size = 0
    while True:
        # Per call, so that a server that sends a byte now and then does not hold us for ever.
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(remaining_s)
        chunk = connection.recv(CHUNK_BYTES)
        if not chunk:
            return b"".join(chunks)
        size += len(chunk)
        if size > max_bytes:
            raise TooLargeError(f"more than {max_bytes} bytes")
        chunks.append(chunk)


def _connect(address: Address, timeout_s: float, tls: "SSLContext | None") -> socket.socket:
    if isinstance(address, tuple):
        # As bytes: for text, Python would import a codec for the host's name.
        host: Any = address[0].encode() if address[0].isascii() else address[0]
        connection = socket.create_connection((host, address[1]), timeout=CONNECT_TIMEOUT_S)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=address[0])
        connection.settimeout(timeout_s)
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _parse(raw: bytes) -> HttpResponse:
    head, separator, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not separator or not words[0].startswith("HTTP/") or len(words) < 2:
        raise ValueError(f"not an HTTP response: {raw[:40]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return HttpResponse(int(words[1]), headers, body)
