"""What an engine says of a registry, or does not say any more, as one message each."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.foreign import pull
from pipeline.foreign.pull import ImageUnavailable, registry_error

NAME = "registry.example/team/image:1"
DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    "said",
    [
        'Get "https://registry.example/v2/": dial tcp: lookup registry.example: Temporary failure in name resolution',
        'Get "https://registry.example/v2/": EOF',
        "received unexpected HTTP status: 503 Service Unavailable",
        'Get "https://registry.example/v2/": Forbidden',
        'failed to do request: Head "https://registry.example/v2/team/image/manifests/1": Forbidden',
        'Get "https://registry.example/v2/": Proxy Authentication Required',
        'Get "https://registry.example/v2/": proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: permission denied',
    ],
)
def test_a_failed_connection_is_not_taken_for_a_missing_login(said: str) -> None:
    found = registry_error(NAME, said, 500)
    assert str(found).startswith(f"{NAME}: registry.example cannot be reached: ")
    assert "docker login" not in found.hint
    assert "proxy is its own" in found.hint


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("pull access denied for team/image, repository does not exist", 404),
        ("unauthorized: authentication required", 401),
        (
            "unexpected status from HEAD request to https://registry.example/v2/team/image/manifests/1: 403 Forbidden",
            403,
        ),
        ("denied: requested access to the resource is denied", 500),
    ],
)
def test_a_registry_that_wants_a_login_is_reported_with_the_command_for_it(said: str, status: int) -> None:
    assert "docker login registry.example" in registry_error(NAME, said, status).hint


@pytest.mark.parametrize(("said", "status"), [("sorry", 503), ('Get "https://registry.example/v2/": Forbidden', 403)])
def test_the_engine_s_own_status_counts_too(said: str, status: int) -> None:
    assert "cannot be reached" in str(registry_error(NAME, said, status))


class Engine(BaseHTTPRequestHandler):
    """As much of an engine as it takes to break off."""

    protocol_version = "HTTP/1.1"
    begins = b'{"status": "Pulling"}\r\n'
    done = threading.Event()

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if "/distribution/" in self.path:
            self.done.wait(20)
        found = self.path.endswith("/version")
        body = json.dumps({"ApiVersion": "1.44"} if found else {"message": "No such image"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n40\r\n{" % (len(self.begins), self.begins))
        self.close_connection = True


class Left(ThreadingHTTPServer):
    """Says nothing of those who did not wait for an answer."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An engine that hangs when it is asked for a registry, and breaks off when it pulls."""
    Engine.done.clear()
    server = Left(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(pull, "REGISTRY_TIMEOUT_S", 4)
    yield
    Engine.done.set()
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("breaking")
def test_a_registry_that_hangs_cannot_be_reached() -> None:
    with pytest.raises(ImageUnavailable, match=f"^{NAME}: registry.example cannot be reached: timeout") as caught:
        pull.resolve_digest(NAME, "linux/arm64", NullLog())
    assert "docker load" in caught.value.hint


@pytest.mark.usefixtures("breaking")
def test_an_engine_that_breaks_off_during_a_pull_is_one_message() -> None:
    with pytest.raises(
        TandemError, match=rf"^pulling registry\.example/team/image@{DIGEST}: the Docker engine failed: "
    ):
        pull.pull_image(NAME, DIGEST, "linux/arm64", NullLog())
