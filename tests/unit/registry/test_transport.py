"""How registries are reached: who gets the password, over what, and where redirects lead.

0.0.0.0 stands for a registry elsewhere: Linux takes it for this machine, and we do not take it for loopback.
"""

import base64
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.registry import api, records, transport
from pipeline.registry.transport import RegistryUnreachable

CERTIFICATE = Path(__file__).parent / "tls.pem"
"""Of 0.0.0.0 and 127.0.0.1, with its key; its own authority. For tests alone."""
BASIC = f"Basic {base64.b64encode(b'me:secret').decode()}"
CONTENT = b'{"a": 1}'
DIGEST = f"sha256:{sha256(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """A registry, an engine or a storage: `answers` by path; `closed` to requests without the password."""

    def __init__(self, *, closed: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.closed = closed
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.seen: list[tuple[str, str, str | None]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def passwords(self) -> set[str]:
        return {given for _, _, given in self.seen if given}

    def handle_error(self, *_: Any) -> None:
        """A client that is not content with the certificate is no error."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = self.headers.get("Authorization")
        self.server.seen.append((self.command, self.path, given))
        status = {"POST": 202, "PUT": 201}.get(self.command, 200)
        status, headers, body = self.server.answers.get(self.path, (status, {"Location": "/upload"}, b"{}"))
        if self.server.closed and given != BASIC:
            status, headers, body = 401, {}, b""
        self.send_response(status)
        for name, value in {"Docker-Content-Digest": DIGEST, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815  # the names that the library calls


@contextmanager
def serving(*, closed: bool = False, tls: bool = False) -> Iterator[Server]:
    server = Server(closed=closed)
    if closed:
        auth = {"auth": base64.b64encode(b"me:secret").decode()}
        auths = {f"{host}:{server.port}": auth for host in ("0.0.0.0", "127.0.0.1")}
        Path(os.environ["DOCKER_CONFIG"], "config.json").write_text(json.dumps({"auths": auths}))
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A login for every closed registry of this file, and an engine that says nothing of registries."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    transport._listed_as_insecure.cache_clear()
    transport._tls_context.cache_clear()
    transport._WANT_LOGIN.clear()
    with serving() as engine:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{engine.port}")
        yield


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate's authority is among those of this machine."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


def ask_everything(address: str) -> None:
    """All kinds of requests that a registry gets."""
    assert api.find_digest(address, "x", "1") == DIGEST
    assert api.missing_parts(address, "x", DIGEST) == ()
    assert api.existing_references(address, "x", [DIGEST]) == (DIGEST,)
    records.write_record(address, "x", "1", CONTENT, NullLog())


def test_a_registry_elsewhere_that_has_no_tls_does_not_get_the_password() -> None:
    with serving(closed=True) as registry:
        address = f"0.0.0.0:{registry.port}"
        for act in (
            lambda: api.find_digest(address, "x", "1"),
            lambda: api.existing_references(address, "x", [DIGEST]),
            lambda: records.write_record(address, "x", "1", CONTENT, NullLog()),
        ):
            with pytest.raises(RegistryUnreachable, match="speaks http, and the engine expects https") as error:
                act()
            assert "insecure-registries" in error.value.hint
        assert registry.passwords == set()


@pytest.mark.usefixtures("trusted")
def test_a_registry_elsewhere_with_tls_gets_the_password() -> None:
    with serving(closed=True, tls=True) as registry:
        ask_everything(f"0.0.0.0:{registry.port}")
        assert registry.passwords == {BASIC}
        assert registry.seen[-1][:2] == ("PUT", "/v2/x/manifests/1")


def test_a_registry_whose_certificate_is_not_trusted_does_not_get_the_password() -> None:
    with serving(closed=True, tls=True) as registry:
        with pytest.raises(RegistryUnreachable, match="certificate verify failed") as error:
            api.find_digest(f"0.0.0.0:{registry.port}", "x", "1")
        assert f"/etc/docker/certs.d/0.0.0.0:{registry.port}/ca.crt" in error.value.hint
        assert registry.seen == []


def test_an_authority_that_the_engine_trusts_for_the_registry_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ENGINE_CERTIFICATES", tmp_path)
    with serving(closed=True, tls=True) as registry:
        (tmp_path / f"0.0.0.0:{registry.port}").mkdir()
        (tmp_path / f"0.0.0.0:{registry.port}" / "ca.crt").write_bytes(CERTIFICATE.read_bytes())
        assert api.find_digest(f"0.0.0.0:{registry.port}", "x", "1") == DIGEST


@pytest.mark.parametrize(
    "listed",
    [
        lambda address: {"IndexConfigs": {address: {"Secure": False}}},
        lambda _: {"InsecureRegistryCIDRs": ["10.0.0.0/8", "0.0.0.0/8"]},
    ],
    ids=["by name", "as a network"],
)
def test_a_registry_that_the_engine_lists_as_insecure_gets_the_password_in_the_clear(
    listed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(closed=True) as registry, serving() as engine:
        address = f"0.0.0.0:{registry.port}"
        engine.answers["/info"] = (200, {}, json.dumps({"RegistryConfig": listed(address)}).encode())
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{engine.port}")
        ask_everything(address)
        assert registry.passwords == {BASIC}


def test_a_registry_that_the_engine_lists_as_secure_is_asked_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(closed=True) as registry, serving() as engine:
        address = f"0.0.0.0:{registry.port}"
        config = {"IndexConfigs": {address: {"Secure": True}}, "InsecureRegistryCIDRs": ["0.0.0.0/8"]}
        engine.answers["/info"] = (200, {}, json.dumps({"RegistryConfig": config}).encode())
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{engine.port}")
        with pytest.raises(RegistryUnreachable):
            api.find_digest(address, "x", "1")
        assert registry.passwords == set()


def test_a_redirected_blob_is_fetched_where_it_lies_and_the_password_stays_with_the_registry() -> None:
    with serving(closed=True) as registry, serving() as storage:
        address = f"127.0.0.1:{registry.port}"
        registry.answers[f"/v2/x/blobs/{DIGEST}"] = (
            307, {"Location": f"http://127.0.0.1:{storage.port}/bucket/1?signature=2"}, b"",
        )  # fmt: skip
        storage.answers["/bucket/1?signature=2"] = (200, {}, CONTENT)
        assert api.get_blob(address, "x", DIGEST) == CONTENT
        assert storage.seen == [("GET", "/bucket/1?signature=2", None)]
        assert registry.passwords == {BASIC}


def test_a_redirect_within_the_registry_keeps_the_password() -> None:
    with serving(closed=True) as registry:
        registry.answers[f"/v2/x/blobs/{DIGEST}"] = (302, {"Location": "/v2/moved"}, b"")
        registry.answers["/v2/moved"] = (200, {}, CONTENT)
        assert api.get_blob(f"127.0.0.1:{registry.port}", "x", DIGEST) == CONTENT


def test_a_pushed_image_whose_blobs_are_redirected_offers_its_platform_and_lacks_nothing() -> None:
    config = json.dumps({"os": "linux", "architecture": "arm64"}).encode()
    with serving() as registry, serving() as storage:
        address, blob = f"127.0.0.1:{registry.port}", f"/v2/x/blobs/{DIGEST}"
        manifest = {"config": {"digest": DIGEST}, "layers": []}
        registry.answers[f"/v2/x/manifests/{DIGEST}"] = (200, {}, json.dumps(manifest).encode())
        registry.answers[blob] = (307, {"Location": f"http://127.0.0.1:{storage.port}/b"}, b"")
        storage.answers["/b"] = (200, {}, config)
        assert api.list_platforms(address, "x", DIGEST) == ("linux/arm64",)
        assert api.missing_parts(address, "x", DIGEST) == ()


@pytest.mark.parametrize("location", ["/v2/x/blobs/{digest}", "file:///etc/passwd", "http://"])
def test_a_redirect_that_leads_nowhere_is_one_message(location: str) -> None:
    with serving() as registry:
        target = location.format(digest=DIGEST)
        registry.answers[f"/v2/x/blobs/{DIGEST}"] = (307, {"Location": target}, b"")
        with pytest.raises(TandemError, match="redirect"):
            api.get_blob(f"127.0.0.1:{registry.port}", "x", DIGEST)


@pytest.mark.usefixtures("trusted")
def test_a_redirect_does_not_lead_out_of_tls() -> None:
    with serving(tls=True) as registry, serving() as storage:
        registry.answers[f"/v2/x/blobs/{DIGEST}"] = (307, {"Location": f"http://127.0.0.1:{storage.port}/"}, b"")
        with pytest.raises(TandemError, match="it redirects out of TLS"):
            api.get_blob(f"0.0.0.0:{registry.port}", "x", DIGEST)
        assert storage.seen == []


def record(registry: Server, content: bytes, *, size: int | None = None, digest: str = "") -> None:
    """Let the registry have a record under the tag 1, which may say what is not so."""
    layer = {
        "mediaType": records.CONTENT_TYPE,
        "digest": digest or f"sha256:{sha256(content).hexdigest()}",
        "size": len(content) if size is None else size,
    }
    manifest = {"artifactType": records.ARTIFACT_TYPE, "layers": [layer]}
    registry.answers["/v2/x/manifests/1"] = (200, {}, json.dumps(manifest).encode())
    registry.answers[f"/v2/x/blobs/{layer['digest']}"] = (200, {}, content)


def test_a_record_is_read() -> None:
    with serving() as registry:
        record(registry, CONTENT)
        assert records.read_record(f"127.0.0.1:{registry.port}", "x", "1") == CONTENT


def test_a_record_of_another_digest_is_refused() -> None:
    with serving() as registry:
        record(registry, CONTENT, digest=f"sha256:{'0' * 64}")
        with pytest.raises(TandemError, match="its content is not sha256:000"):
            records.read_record(f"127.0.0.1:{registry.port}", "x", "1")


@pytest.mark.parametrize("size", [0, -1, records.MAX_RECORD_BYTES + 1])
def test_a_record_that_says_it_is_too_large_or_empty_is_not_fetched(size: int) -> None:
    with serving() as registry:
        record(registry, CONTENT, size=size)
        with pytest.raises(TandemError, match="not a record"):
            records.read_record(f"127.0.0.1:{registry.port}", "x", "1")
        assert [path for _, path, _ in registry.seen] == ["/v2/x/manifests/1"]


@pytest.mark.parametrize(
    ("size", "message"),
    [(9, "its content has 9 bytes, not 8"), (records.MAX_RECORD_BYTES * 2, rf"more than {4 << 20 | 64 << 10} bytes")],
)
def test_a_record_that_is_larger_than_it_says_is_refused_as_one(size: int, message: str) -> None:
    with serving() as registry:
        record(registry, b" " * size, size=8)
        with pytest.raises(TandemError, match=message) as error:
            records.read_record(f"127.0.0.1:{registry.port}", "x", "1")
        assert not isinstance(error.value, RegistryUnreachable)
