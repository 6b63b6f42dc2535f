"""HTTP looks over a plain socket."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from pipeline.core import http_client
from pipeline.core.errors import TandemError
from pipeline.registry import api


@contextmanager
def answering(raw: bytes | Callable[[bytes], bytes]) -> Iterator[tuple[tuple[str, int], list[bytes]]]:
    """A server that says `raw` to everybody, or what it makes of a question; its address and what it was asked."""
    asked: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(raw(asked[-1]) if callable(raw) else raw)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname(), asked
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


def test_status_headers_and_body_are_told_apart() -> None:
    with answering(b'HTTP/1.1 200 OK\r\nDocker-Content-Digest: sha256:1\r\n\r\n{"a": 1}') as (address, asked):
        answer = http_client.request(address, "/x", headers={"Accept": "a/b"})
    assert (answer.status, answer.headers["docker-content-digest"], answer.json()) == (200, "sha256:1", {"a": 1})
    assert asked[0].startswith(b"GET /x HTTP/1.0\r\n")
    assert b"Accept: a/b\r\n" in asked[0]


def test_what_is_not_http_is_an_error() -> None:
    with answering(b"SSH-2.0-OpenSSH\r\n") as (address, _), pytest.raises(ValueError, match="not an HTTP response"):
        http_client.request(address, "/")


def test_a_connection_that_is_refused_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with pytest.raises(OSError, match="refused"):
        http_client.request(address, "/")


@pytest.mark.parametrize(("status", "there"), [("200 OK", True), ("401 Unauthorized", True), ("404 Not Found", False)])
def test_a_registry_is_what_answers_as_one(status: str, there: bool) -> None:
    with answering(f"HTTP/1.0 {status}\r\n\r\n".encode()) as ((host, port), _):
        assert api.is_up(f"{host}:{port}") is there


def test_a_manifest_that_the_registry_lacks_is_none_and_a_refusal_is_an_error() -> None:
    with answering(b"HTTP/1.0 404 Not Found\r\n\r\n") as ((host, port), _):
        assert api.find_digest(f"{host}:{port}", "a/b", "tag") is None
    with answering(b"HTTP/1.0 401 Unauthorized\r\n\r\n") as ((host, port), _):
        with pytest.raises(TandemError) as caught:
            api.find_digest(f"{host}:{port}", "a/b", "tag")
        assert "docker login" in caught.value.hint


@pytest.mark.parametrize("many", [0, 1, 3, 4, 5, 36])
def test_many_looks_go_over_few_connections(many: int) -> None:
    def said(question: bytes) -> bytes:
        paths = [part.split(b" ")[1] for part in question.split(b"\r\n\r\n")[:-1]]
        return b"".join(b"HTTP/1.1 %s X\r\nContent-Length: 7\r\n\r\n" % path[1:] for path in paths)

    statuses = [200 + nth for nth in range(many)]
    with answering(said) as (address, asked):
        assert (
            http_client.head_statuses(address, [f"/{status}" for status in statuses], headers={"Accept": "x/y"})
            == statuses
        )
    assert len(asked) == min(many, http_client.CONNECTIONS)
    assert all(question.startswith(b"HEAD /2") for question in asked)
    assert all(question.count(b"Connection: close") == 1 for question in asked)
    assert sum(question.count(b"Accept: x/y\r\n") for question in asked) == many


def test_fewer_answers_than_questions_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "CONNECTIONS", 1)
    with answering(b"HTTP/1.1 200 OK\r\n\r\n") as (address, _), pytest.raises(ValueError, match="1 answers to 2"):
        http_client.head_statuses(address, ["/a", "/b"])


@pytest.mark.parametrize("body", [b"<html>", b"[]"])
def test_a_manifest_that_is_none_is_one_message(body: bytes) -> None:
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n" + body) as (address, _),
        pytest.raises(TandemError, match="does not give a manifest"),
    ):
        api.missing_parts(f"{address[0]}:{address[1]}", "x", "sha256:1")


@contextmanager
def dripping(first: bytes, drip: bytes, every_s: float) -> Iterator[tuple[str, int]]:
    """A server that goes on to send a few bytes, for ever."""
    server = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(first)
                while not stop.wait(every_s):
                    connection.sendall(drip)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()
    finally:
        stop.set()
        server.close()
        thread.join(5)


def test_an_answer_that_drips_is_given_up_after_the_time_that_was_given() -> None:
    start = time.monotonic()
    with dripping(b"HTTP/1.0 200 OK\r\n\r\n", b"x", 0.05) as address, pytest.raises(TimeoutError, match="timed out"):
        http_client.request(address, "/", timeout_s=0.3)
    assert time.monotonic() - start < 5


def test_answers_without_bodies_that_drip_are_given_up_too() -> None:
    start = time.monotonic()
    with dripping(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0.05) as address, pytest.raises(TimeoutError, match="timed out"):
        http_client.head_statuses(address, ["/a"], timeout_s=0.3)
    assert time.monotonic() - start < 5


def test_an_answer_without_end_is_given_up_at_the_largest_size() -> None:
    with (
        dripping(b"HTTP/1.0 200 OK\r\n\r\n", b"x" * 65536, 0.001) as address,
        pytest.raises(http_client.TooLargeError, match="more than 1000000 bytes"),
    ):
        http_client.request(address, "/", max_bytes=1_000_000)


def test_a_body_is_sent_with_its_length() -> None:
    with answering(b"HTTP/1.1 201 Created\r\n\r\n") as (address, asked):
        assert http_client.request(address, "/x", method="PUT", body=b"abc").status == 201
    assert asked[0].startswith(b"PUT /x HTTP/1.0\r\n")
    assert asked[0].endswith(b"Content-Length: 3\r\n\r\nabc")
