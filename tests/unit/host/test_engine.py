"""Where an endpoint's engine is looked for, and what it lists."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from docker.errors import NotFound

from pipeline.core.errors import HostError, TandemError
from pipeline.host import engine


def test_the_local_engine_is_the_one_that_the_client_talks_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/other.sock")
    assert engine.api_address("local") == "/run/other.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert engine.api_address("local") == ("127.0.0.1", 2375)


@pytest.mark.parametrize(
    ("host", "address"),
    [("tcp://spark-1", ("spark-1", 2375)), ("tcp://127.0.0.1:99/", ("127.0.0.1", 99)), ("tcp://[::1]:9", ("::1", 9))],
)
def test_a_port_may_be_left_out_as_docker_has_it(host: str, address: tuple[str, int]) -> None:
    assert engine.api_address(host) == address


@pytest.mark.parametrize("host", ["tcp://", "tcp://:2375", "tcp://spark-1:many", "tcp://spark-1:99999"])
def test_an_invalid_host_or_port_is_refused(host: str) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        engine.api_address(host)


def test_an_endpoint_that_a_socket_cannot_reach_is_named() -> None:
    with pytest.raises(HostError, match="gopher://x"):
        engine.api_address("gopher://x")


def test_no_engine_is_one_plain_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(HostError, match="no Docker engine answers") as caught:
        engine.get("local", "/version")
    assert "./doitw host" in caught.value.hint


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("unix:///nowhere/docker.sock", "No such file or directory"),
        ("tcp://127.0.0.1:1", "Connection refused"),
        ("tcp://127.0.0.1:99999", "Port out of range 0-65535"),
    ],
)
def test_an_error_of_the_sdk_is_one_plain_message(
    host: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(HostError) as caught:
        engine.client()
    assert str(caught.value) == f"no Docker engine answers at local ({host}): {said}"


class Engine(BaseHTTPRequestHandler):
    """An engine whose images go while it lists them, and which answers removals as planned."""

    fails = 0
    plan: ClassVar[list[int]] = []

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        listing = "/images/json" in self.path
        gone = listing and Engine.fails > 0
        Engine.fails -= gone
        said: object = {"message": "content digest: not found"} if gone else {"ApiVersion": "1.44"}
        body = json.dumps([{"Id": "sha256:1"}] if listing and not gone else said).encode()
        self.answer(404 if gone else 200, body)

    def do_DELETE(self) -> None:
        self.answer(self.plan.pop(0), b'{"message": "no"}')

    def do_POST(self) -> None:
        self.answer(404, b'{"message": "no"}')  # whom it shall wait for is gone

    def do_PUT(self) -> None:
        self.answer(500, b'{"message": "no"}')

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("forgetful")
def test_a_list_of_images_is_repeated_if_one_is_removed_meanwhile() -> None:
    Engine.fails = 4
    assert engine.list_images(engine.client()) == [{"Id": "sha256:1"}]


@pytest.mark.usefixtures("forgetful")
def test_a_list_of_images_that_always_fails_is_given_up() -> None:
    Engine.fails = 5
    with pytest.raises(NotFound, match="not found"):
        engine.list_images(engine.client())
    assert Engine.fails == 0


@pytest.mark.usefixtures("forgetful")
def test_a_removal_that_is_in_progress_already_counts() -> None:
    container = engine.client().containers.prepare_model({"Id": "1"})
    Engine.plan[:] = [500, 409]
    engine.remove_container(container)
    assert Engine.plan == []
    Engine.plan[:] = [404]
    with pytest.raises(NotFound):
        engine.remove_container(container)


@pytest.mark.usefixtures("forgetful")
def test_what_an_engine_refuses_is_an_error_of_ours_with_its_words() -> None:
    with pytest.raises(TandemError, match=r"^the Docker engine failed: no$") as caught, engine.session() as client:
        client.api.put_archive("gone", "/", b"")
    assert not isinstance(caught.value, HostError)
    Engine.plan[:] = [404]
    with (
        pytest.raises(HostError, match=r"^x: the Docker engine failed: no$"),
        engine.failures("x", error=HostError),
    ):
        engine.client().api.remove_container("gone")


@pytest.mark.usefixtures("forgetful")
def test_an_engine_that_stops_answering_is_an_error_of_the_host() -> None:
    with pytest.raises(HostError, match=r"^the Docker engine failed: ") as caught, engine.session() as client:
        client.api.get("http://127.0.0.1:1/")
    assert "./doitw host" in caught.value.hint


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{x"])
def test_something_else_than_an_engine_is_one_plain_message(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(HostError, match="no Docker engine answers at local"):
            engine.get("local", "/info")
        thread.join(20)


@pytest.mark.usefixtures("forgetful")
def test_an_engine_that_refuses_to_rename_an_image_is_one_plain_message() -> None:
    with pytest.raises(TandemError, match="no"):
        engine.rename_image("sha256:1", "a:b", "c:d")
