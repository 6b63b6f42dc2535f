"""A real registry in the real engine: pushed once, proved, skipped, retried, refused."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core import procs
from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.host import engine
from pipeline.lock.service_packages import REGISTRY
from pipeline.registry import api, local, push
from pipeline.registry.push import SmokedImage
from pipeline.registry.transport import RegistryUnreachable
from tests import stored
from tests.ports import free_port

PLATFORM = "linux/arm64"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    where = f"127.0.0.1:{free_port()}"
    locked = REGISTRY.read(Path(__file__).parents[2])
    try:
        local.start_registry(where, locked, tmp_path_factory.mktemp("registry"), NullLog())
        yield where
    finally:
        stored.remove_registry(where, volume=True)


@pytest.fixture
def image(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The digest of a tiny image of the target platform."""
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY content /content\n")
    (tmp_path / "content").write_text(f"{request.node.name}\n" * 1000)
    name = f"tandem-test-{request.node.originalname.replace('_', '-')}:1"
    options = ["--platform", PLATFORM, "--provenance=false", "--output", "type=docker", "--tag", name]
    procs.run(
        ["docker", "buildx", "build", *options, str(tmp_path)], log=NullLog(), inherit=procs.DOCKER, timeout_s=120
    )
    yield str(engine.find_image("local", name)["Id"])
    client = engine.client()
    for tag in client.images.get(name).tags:
        client.images.remove(tag, force=True)


def test_what_is_pushed_is_there_under_digest_and_tag_and_is_not_pushed_again(address: str, image: str) -> None:
    first, second = NullLog(), NullLog()
    pushed = push.push(SmokedImage(image, PLATFORM), address, "tandem/x", "1", first)
    assert api.find_digest(address, "tandem/x", "1") == image == pushed.digest
    assert api.list_platforms(address, "tandem/x", image) == (PLATFORM,)
    push.push(SmokedImage(image, PLATFORM), address, "tandem/x", "1", second)
    assert second.lines == [f"{pushed} is there already"]


def test_a_second_registry_call_finds_the_first_one(address: str, tmp_path: Path) -> None:
    before = engine.find_container("local", local.container_name(address))["Id"]
    local.start_registry(address, REGISTRY.read(Path(__file__).parents[2]), tmp_path, NullLog())
    assert engine.find_container("local", local.container_name(address))["Id"] == before


def test_a_registry_that_moves_to_another_address_of_its_port_keeps_its_images(image: str, tmp_path: Path) -> None:
    locked, port, log = REGISTRY.read(Path(__file__).parents[2]), free_port(), NullLog()
    try:
        local.start_registry(f"127.0.0.1:{port}", locked, tmp_path, NullLog())
        push.push(SmokedImage(image, PLATFORM), f"127.0.0.1:{port}", "tandem/x", "1", NullLog())
        local.start_registry(f"127.0.0.2:{port}", locked, tmp_path, log)
        assert api.find_digest(f"127.0.0.2:{port}", "tandem/x", "1") == image
        assert not api.is_up(f"127.0.0.1:{port}")
        assert any("the container is replaced, and its volume stays" in line for line in log.lines)
    finally:
        stored.remove_registry(f"127.0.0.2:{port}", volume=True)


@pytest.fixture
def without_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that names a credential helper which is not installed, as Docker Desktop leaves it."""
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text('{"credsStore": "not-installed"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


@pytest.mark.usefixtures("without_helper")
def test_a_registry_that_wants_no_login_needs_no_credential_helper(address: str, image: str) -> None:
    log = NullLog()
    pushed = push.push(SmokedImage(image, PLATFORM), address, "tandem/helper", "1", log)
    assert api.find_digest(address, "tandem/helper", "1") == pushed.digest
    push.pull_image(image, PLATFORM, address, "tandem/helper", "tandem-test-push-pulled:1", log)
    engine.client().images.remove("tandem-test-push-pulled:1", force=True)
    assert sum("docker-credential-not-installed" in line for line in log.lines) == 2


@pytest.mark.usefixtures("without_helper")
def test_a_registry_that_wants_a_login_names_the_credential_helper_that_is_missing(address: str, image: str) -> None:
    faulty = Faulty(address, "401 Unauthorized", times=100)
    try:
        with pytest.raises(TandemError, match=r"config\.json.*docker-credential-not-installed") as caught:
            push.push(SmokedImage(image, PLATFORM), faulty.address, "tandem/closed", "1", NullLog())
    finally:
        faulty.close()
    assert "credsStore" in caught.value.hint


def test_the_wrong_platform_is_noticed_after_the_push(address: str, image: str) -> None:
    with pytest.raises(TandemError, match="offers linux/arm64 after the push, not linux/amd64"):
        push.push(SmokedImage(image, "linux/amd64"), address, "tandem/wrong", "1", NullLog())


def test_a_registry_that_is_down_is_one_plain_message(image: str) -> None:
    with pytest.raises(RegistryUnreachable, match="no registry answers at 127"):
        push.push(SmokedImage(image, PLATFORM), f"127.0.0.1:{free_port()}", "tandem/x", "1", NullLog())


class Faulty:
    """A proxy before the registry that answers the first uploads with a status of its own."""

    def __init__(self, behind: str, status: str, times: int) -> None:
        self.faults = 0
        self._behind, self._status, self._times = behind, status, times
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        first = connection.recv(65536)
        if first.startswith((b"POST", b"PUT", b"PATCH")) and self.faults < self._times:
            self.faults += 1
            connection.sendall(f"HTTP/1.1 {self._status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            connection.close()
            return
        host, _, port = self._behind.rpartition(":")
        with socket.create_connection((host, int(port))) as behind:
            # One request a connection, so that each one passes here.
            behind.sendall(first.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            threading.Thread(target=_copy, args=(connection, behind), daemon=True).start()
            _copy(behind, connection)
            # The other direction still reads: only a shutdown makes the client see the end.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        return


def test_a_server_error_is_tried_again(address: str, image: str) -> None:
    faulty = Faulty(address, "503 Service Unavailable", times=1)
    log = NullLog()
    try:
        push.push(SmokedImage(image, PLATFORM), faulty.address, "tandem/flaky", "1", log)
    finally:
        faulty.close()
    assert faulty.faults == 1
    assert [line for line in log.lines if "trying again" in line]
    assert api.find_digest(address, "tandem/flaky", "1") == image


def test_a_refusal_is_not_tried_again(address: str, image: str) -> None:
    faulty = Faulty(address, "401 Unauthorized", times=100)
    log = NullLog()
    try:
        with pytest.raises(TandemError, match="refuses") as caught:
            push.push(SmokedImage(image, PLATFORM), faulty.address, "tandem/closed", "1", log)
    finally:
        faulty.close()
    assert "docker login" in caught.value.hint
    assert not [line for line in log.lines if "trying again" in line]
