"""Name and password of `docker login` go to the registry that wants them, and nowhere else."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.registry import api, records

BASIC = f"Basic {base64.b64encode(b'me:secret').decode()}"
DIGEST = f"sha256:{'a' * 64}"


class Closed(ThreadingHTTPServer):
    """A registry that answers nobody without a password; `seen` has method, path and what was given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, str | None]] = []
        self.elsewhere = "http://127.0.0.1:1/elsewhere?state=1"
        self.broken = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Closed

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = self.headers.get("Authorization")
        self.server.seen.append((self.command, self.path, given))
        if given != BASIC:
            self.send_response(401)
        elif self.command != "HEAD" and self.server.broken:
            self.server.broken -= 1
            self.send_response(503)
        else:
            self.send_response({"HEAD": 200, "POST": 202}.get(self.command, 201))
            self.send_header("Docker-Content-Digest", DIGEST)
            self.send_header("Location", self.server.elsewhere)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_PUT = answer  # noqa: N815  # the names that the library calls


@pytest.fixture
def closed() -> Iterator[Closed]:
    server = Closed()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def login(tmp_path: Path, closed: Closed, monkeypatch: pytest.MonkeyPatch) -> None:
    auths = {closed.address: {"auth": base64.b64encode(b"me:secret").decode()}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.mark.usefixtures("login")
def test_a_look_sends_the_password_only_if_the_registry_asks_for_it(closed: Closed) -> None:
    assert api.find_digest(closed.address, "x", "1") == DIGEST
    assert closed.seen == [("HEAD", "/v2/x/manifests/1", None), ("HEAD", "/v2/x/manifests/1", BASIC)]


def test_without_a_login_the_hint_names_docker_login(
    closed: Closed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(TandemError, match="answers 401") as error:
        api.find_digest(closed.address, "x", "1")
    assert "docker login" in error.value.hint
    with pytest.raises(TandemError, match="answers 401") as error:
        records.write_record(closed.address, "x", "1", b"content", NullLog())
    assert "docker login" in error.value.hint


@pytest.mark.usefixtures("login")
def test_an_upload_goes_to_the_address_where_the_registry_was_reached(closed: Closed) -> None:
    records.write_record(closed.address, "x", "1", b"content", NullLog())
    assert closed.seen.pop(0) == ("POST", "/v2/x/blobs/uploads/", None)
    paths = [(method, path.partition("digest=")[0]) for method, path, _ in closed.seen]
    upload = [("POST", "/v2/x/blobs/uploads/"), ("PUT", "/elsewhere?state=1&")]
    assert paths == [*upload, *upload, ("PUT", "/v2/x/manifests/1")]
    assert {given for _, _, given in closed.seen} == {BASIC}


@pytest.mark.usefixtures("login")
def test_a_server_error_is_tried_again(closed: Closed) -> None:
    closed.broken = 1
    log = NullLog()
    records.write_record(closed.address, "x", "1", b"content", log)
    assert ["trying again" in line for line in log.lines] == [True, False]


@pytest.mark.parametrize("task", ["build:cpu", "a" * 200, "wheels:a/b"])
def test_registries_accept_the_tag_of_a_record(task: str) -> None:
    tag = records.record_tag(task, "f" * 64)
    assert len(tag) <= 128
    assert set(tag) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
    assert tag.endswith("f" * 64)


@pytest.mark.parametrize(
    "manifest",
    [{"layers": None}, {"layers": [1]}, {"manifests": [1]}, {"manifests": 5}, {"config": 5}, {"config": {"x": 1}}],
)
@pytest.mark.parametrize("ask", [api.missing_parts, api.list_platforms])
def test_a_manifest_of_another_shape_is_one_message(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[str, str, str], object], manifest: dict[str, object]
) -> None:
    monkeypatch.setattr(api, "get_manifest", lambda *_: api.Manifest(DIGEST, manifest))
    with pytest.raises(TandemError, match=r"the registry 127\.0\.0\.1:1 does not give an OCI manifest for x@sha256:"):
        ask("127.0.0.1:1", "x", DIGEST)
