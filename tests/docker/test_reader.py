"""Tiny foreign images in a real registry: a name becomes a digest, is pulled once, and is read."""

import base64
import gzip
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.core import platforms, procs
from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.core.owners import current_owner
from pipeline.foreign import pull
from pipeline.host import containers, engine
from pipeline.image import base_paths
from pipeline.lock.contents import CombinedLock
from pipeline.lock.service_packages import REGISTRY as LOCKED
from pipeline.registry import api, local
from tests import stored
from tests.ports import free_port
from tests.tinyroot import REGISTRY, Root, debian, distribution, script, tar

PLATFORM = "linux/arm64"
DIST = "usr/local/lib/python3.11/dist-packages"
NAME = "tandem-test/reader"
BASIC = f"Basic {base64.b64encode(b'me:secret').decode()}"
LATIN = b"opt/caf\xe9.txt"
ROOT: Root = {
    os.fsdecode(LATIN): b"",
    **debian(),
    **distribution(DIST, "vllm", "0.17.1+cu130", "transformers>=4"),
    **distribution(DIST, "transformers", "4.57.1"),
    f"{DIST}/vllm/__init__.py": b"",
    f"{DIST}/vllm/model_executor/models/registry.py": REGISTRY,
    "usr/local/bin/vllm": script("/usr/bin/python3"),
    "app/entrypoint.sh": script("/bin/bash", "exec vllm serve\n"),
}
DOCKERFILE = """\
FROM scratch
ADD root.tar /
ENV PATH=/usr/local/bin:/usr/bin MODEL=x=y
USER root
WORKDIR /app
VOLUME /data
ENTRYPOINT ["/app/entrypoint.sh"]
CMD ["serve", "--fast"]
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    where = f"127.0.0.1:{free_port()}"
    try:
        locked = LOCKED.read(Path(__file__).parents[2])
        local.start_registry(where, locked, tmp_path_factory.mktemp("registry"), NullLog())
        yield where
    finally:
        stored.remove_registry(where, volume=True)


@pytest.fixture(autouse=True)
def nothing_is_left(address: str) -> Iterator[None]:
    """Neither an image nor a container stays behind."""
    client = engine.client()
    yield
    stored.remove(client, NAME)
    assert not stored.containers(client, f"{containers.OWNER_LABEL}={current_owner()}")


def make(folder: Path, name: str, platforms: str = PLATFORM, dockerfile: str = DOCKERFILE, push: bool = True) -> None:
    """Build an image; if it is pushed, the engine itself does not keep it."""
    (folder / "Dockerfile").write_text(dockerfile)
    (folder / "root.tar").write_bytes(tar(ROOT))
    options = ["--platform", platforms, "--provenance=false", "--tag", name, "--output", "type=docker"]
    procs.run(["docker", "buildx", "build", *options, str(folder)], log=NullLog(), inherit=procs.DOCKER, timeout_s=120)
    if push:
        procs.run(["docker", "push", name], log=NullLog(), inherit=procs.DOCKER, timeout_s=120)
        engine.client().images.remove(engine.find_image("local", name)["Id"], force=True)


def test_a_tag_becomes_a_digest_is_pulled_once_and_read(address: str, tmp_path: Path) -> None:
    reference = f"{address}/{NAME}:1"
    make(tmp_path, reference)
    digest = pull.resolve_digest(reference, PLATFORM, NullLog())
    assert digest == api.find_digest(address, NAME, "1")
    assert pull.resolve_digest(f"{address}/{NAME}@{digest}", PLATFORM, NullLog()) == digest
    first, second = NullLog(), NullLog()
    pull.pull_image(reference, digest, PLATFORM, first)
    pull.pull_image(reference, digest, PLATFORM, second)
    assert any("pulling" in line for line in first.lines)
    assert second.lines == [f"{address}/{NAME}@{digest} is already in the engine"]

    reading = pull.read_image(reference, digest, PLATFORM, NullLog()).facts
    assert (reading.digest, reading.platform) == (digest, PLATFORM)
    assert (reading.entrypoint, reading.cmd) == (("/app/entrypoint.sh",), ("serve", "--fast"))
    assert (reading.user, reading.workdir) == ("root", "/app")
    assert reading.env == {"PATH": "/usr/local/bin:/usr/bin", "MODEL": "x=y"}
    assert (reading.python.path, reading.python.version, reading.glibc) == ("/usr/bin/python3.11", "3.11.2", 36)
    assert (reading.version("vllm"), reading.version("transformers")) == ("0.17.1+cu130", "4.57.1")
    assert "Qwen3_5MoeForConditionalGeneration" in reading.architectures
    assert reading.entrypoint_text == "#!/bin/bash\nexec vllm serve\n"
    assert reading.conflicts == ()


def test_an_image_that_only_this_engine_has_is_used(tmp_path: Path) -> None:
    name = f"127.0.0.1:{free_port()}/{NAME}:own"
    make(tmp_path, name, dockerfile="FROM scratch\nADD root.tar /\n", push=False)
    log = NullLog()
    digest = pull.resolve_digest(name, PLATFORM, log)
    assert digest == engine.find_image("local", name)["Id"]
    assert "cannot be reached" in log.lines[0]
    assert log.lines[1] == f"{name} is used as this engine has it: {digest}"
    pull.pull_image(name, digest, PLATFORM, NullLog())
    reading = pull.read_image(name, digest, PLATFORM, NullLog()).facts
    # Such an image has no command at all, and the engine creates no container without one.
    assert (reading.entrypoint, reading.cmd, reading.user) == ((), (), "")


def test_a_working_folder_that_no_layer_has_is_not_taken_for_one_of_a_layer(tmp_path: Path) -> None:
    name = f"127.0.0.1:{free_port()}/{NAME}:workdir"
    (tmp_path / "root.tar").write_bytes(tar(ROOT))
    changes = ["WORKDIR /srv/model", "ENV PATH=/usr/bin", "HEALTHCHECK CMD curl localhost"]
    options = [word for change in changes for word in ("--change", change)]
    imported = ["docker", "import", "--platform", PLATFORM, *options, str(tmp_path / "root.tar"), name]
    procs.run(imported, log=NullLog(), inherit=procs.DOCKER, timeout_s=120)
    described = engine.find_image("local", name)
    assert described is not None
    scan = pull.read_image(name, described["Id"], PLATFORM, NullLog())
    assert scan.facts.layers == tuple(described["RootFS"]["Layers"])
    assert (scan.facts.workdir, scan.facts.healthcheck) == ("/srv/model", True)
    assert not any(path.startswith(b"d srv") for path in scan.paths)


def test_zstd_layers_of_docker_s_manifest_type_are_read(tmp_path: Path) -> None:
    name = f"127.0.0.1:{free_port()}/{NAME}:zstd"
    # containerd/containerd#9263: an engine may not unpack such an image for another machine.
    own = f"linux/{platforms.architecture_of(os.uname().machine)}"
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "root.tar").write_bytes(tar(ROOT))
    output = f"type=image,name={name},oci-mediatypes=false,compression=zstd,force-compression=true"
    options = ["--platform", own, "--provenance=false", "--output", output]
    procs.run(
        ["docker", "buildx", "build", *options, str(tmp_path)], log=NullLog(), inherit=procs.DOCKER, timeout_s=120
    )
    described = engine.find_image("local", name)
    assert described is not None
    facts = pull.read_image(name, pull.resolve_digest(name, own, NullLog()), own, NullLog()).facts
    assert (facts.layers, facts.healthcheck) == (tuple(described["RootFS"]["Layers"]), False)


def test_an_image_with_instructions_for_builds_on_top_is_refused(tmp_path: Path) -> None:
    name = f"127.0.0.1:{free_port()}/{NAME}:onbuild"
    make(tmp_path, name, dockerfile="FROM scratch\nADD root.tar /\nONBUILD COPY . /app\nONBUILD RUN x\n", push=False)
    digest = pull.resolve_digest(name, PLATFORM, NullLog())
    with pytest.raises(TandemError, match=r"\(ONBUILD COPY \. /app; ONBUILD RUN x\)$") as caught:
        pull.read_image(name, digest, PLATFORM, NullLog())
    assert "flatten this one" in caught.value.hint


def test_a_name_in_an_image_that_is_not_utf8_is_listed_byte_by_byte(tmp_path: Path) -> None:
    name = f"127.0.0.1:{free_port()}/{NAME}:bytes"
    make(tmp_path, name, dockerfile="FROM scratch\nADD root.tar /\n", push=False)
    digest = pull.resolve_digest(name, PLATFORM, NullLog())
    locked = CombinedLock(
        name="x", request={"platform": PLATFORM}, cutoff="", epoch=0, wheels=(), interpreter=(), tools={},
        base=f"{pull.repository_of(name)}@{digest}", facts=pull.read_image(name, digest, PLATFORM, NullLog()).facts,
    )  # fmt: skip
    for log in (NullLog(), NullLog()):  # read, and taken from what was kept
        made = base_paths.pull_base(locked, tmp_path, tmp_path, log)
        listed = base_paths.read_paths(tmp_path / base_paths.LIST)
        assert listed[os.fsdecode(LATIN)] == "f"
        assert made.paths == len(listed)
    assert any("was read before" in line for line in log.lines)
    assert LATIN in gzip.decompress((tmp_path / base_paths.LIST).read_bytes())


def test_if_a_registry_hangs_the_engine_s_own_image_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "REGISTRY_TIMEOUT_S", 4)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        name = f"127.0.0.1:{hangs.getsockname()[1]}/{NAME}:own"
        make(tmp_path, name, dockerfile="FROM scratch\nADD root.tar /\n", push=False)
        log = NullLog()
        assert pull.resolve_digest(name, PLATFORM, log) == engine.find_image("local", name)["Id"]
        assert "cannot be reached: timeout" in log.lines[0]
        with pytest.raises(pull.ImageUnavailable, match="cannot be reached: timeout"):
            pull.resolve_digest(name.replace(":own", ":other"), PLATFORM, NullLog())


def test_a_platform_that_an_image_does_not_offer_is_refused_with_the_offered_ones(address: str, tmp_path: Path) -> None:
    reference = f"{address}/{NAME}:two"
    make(tmp_path, reference, "linux/arm64,linux/amd64")
    with pytest.raises(TandemError, match="does not offer linux/ppc64le; it offers linux/amd64, linux/arm64"):
        pull.resolve_digest(reference, "linux/ppc64le", NullLog())
    digest = pull.resolve_digest(reference, "linux/amd64", NullLog())
    pull.pull_image(reference, digest, "linux/amd64", NullLog())
    log = NullLog()
    pull.pull_image(reference, digest, "linux/arm64", log)
    assert any("pulling" in line for line in log.lines)
    reading = pull.read_image(reference, digest, "linux/arm64", NullLog()).facts
    assert reading.platform == "linux/arm64"
    assert list(reading.layers) == diff_ids(address, digest, "arm64")


def diff_ids(address: str, index: str, architecture: str) -> list[str]:
    """What the registry says of one platform's layers."""
    found = api.get_manifest(address, NAME, index)
    assert found is not None
    (one,) = (m["digest"] for m in found.value["manifests"] if m["platform"]["architecture"] == architecture)
    manifest = api.get_manifest(address, NAME, one)
    assert manifest is not None
    config = api.get_blob(address, NAME, manifest.value["config"]["digest"])
    assert config is not None
    layers: list[str] = json.loads(config)["rootfs"]["diff_ids"]
    return layers


def test_an_image_for_another_platform_is_refused(address: str, tmp_path: Path) -> None:
    reference = f"{address}/{NAME}:one"
    make(tmp_path, reference, "linux/amd64")
    with pytest.raises(TandemError, match="does not offer linux/arm64; it offers linux/amd64"):
        pull.pull_image(reference, pull.resolve_digest(reference, PLATFORM, NullLog()), PLATFORM, NullLog())
    make(tmp_path, reference, "linux/amd64", push=False)
    own = f"127.0.0.1:{free_port()}/{NAME}:one"
    engine.client().images.get(reference).tag(own.rpartition(":")[0], "one")
    with pytest.raises(TandemError, match="does not offer linux/arm64; it offers linux/amd64, as this engine has it"):
        pull.resolve_digest(own, PLATFORM, NullLog())


def test_an_unknown_image_is_one_plain_message(address: str) -> None:
    with pytest.raises(pull.ImageUnavailable, match=rf"^{address}/{NAME}:none: {address} has no such image: ") as error:
        pull.resolve_digest(f"{address}/{NAME}:none", PLATFORM, NullLog())
    assert error.value.hint == "check name and tag"


@pytest.mark.parametrize("host", ["127.0.0.1:9", "hub.invalid"])
def test_a_hub_that_cannot_be_reached_is_one_plain_message(host: str) -> None:
    with pytest.raises(pull.ImageUnavailable, match=f"^{host}/{NAME}:1: {host} cannot be reached: ") as error:
        pull.resolve_digest(f"{host}/{NAME}:1", PLATFORM, NullLog())
    assert "docker load" in error.value.hint
    with pytest.raises(pull.ImageUnavailable, match="cannot be reached"):
        pull.pull_image(f"{host}/{NAME}:1", f"sha256:{'a' * 64}", PLATFORM, NullLog())


class Closed(ThreadingHTTPServer):
    """A registry that wants a login, in front of the one at `behind`."""

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = behind
        self.address = f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Closed
    default_request_version = (
        "HTTP/1.0"  # so that a TLS hello gets a whole answer, which tells the engine to speak http
    )

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != BASIC:
            status, headers, body = 401, {"WWW-Authenticate": 'Basic realm="closed"'}, b"{}"
        else:
            connection = http.client.HTTPConnection(self.server.behind)
            connection.request(
                self.command, self.path, headers={"Accept": ", ".join(self.headers.get_all("Accept", []))}
            )
            answer = connection.getresponse()
            status, headers, body = answer.status, dict(answer.getheaders()), answer.read()
            connection.close()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  # the name that the library calls


@pytest.fixture
def closed(address: str) -> Iterator[str]:
    server = Closed(address)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.address
    server.shutdown()
    server.server_close()


def test_a_missing_login_is_one_plain_message_and_docker_s_own_login_is_used(
    address: str, closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, f"{address}/{NAME}:closed")
    reference = f"{closed}/{NAME}:closed"
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    with pytest.raises(pull.ImageUnavailable, match="without a login") as error:
        pull.resolve_digest(reference, PLATFORM, NullLog())
    assert f"`docker login {closed}`" in error.value.hint
    auths = {closed: {"auth": base64.b64encode(b"me:secret").decode()}}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(json.dumps({"auths": auths}))
    digest = pull.resolve_digest(reference, PLATFORM, NullLog())
    assert digest == api.find_digest(address, NAME, "closed")
    pull.pull_image(reference, digest, PLATFORM, NullLog())
    assert pull.read_image(reference, digest, PLATFORM, NullLog()).facts.version("vllm") == "0.17.1+cu130"


def test_a_credential_helper_is_asked(
    address: str, closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, f"{address}/{NAME}:helped")
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\nread host\necho \'{"ServerURL": "x", "Username": "me", "Secret": "secret"}\'\n')
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {closed: "test"}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/local/bin:/usr/bin:/bin")
    assert pull.resolve_digest(f"{closed}/{NAME}:helped", PLATFORM, NullLog()).startswith("sha256:")


def test_a_container_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    name = f"127.0.0.1:{free_port()}/{NAME}:1"
    make(tmp_path, name, push=False)
    space, _, start = current_owner().split()
    gone = {engine.LABEL: pull.CONTAINER_KIND, containers.OWNER_LABEL: f"{space} 4194304 {start}"}
    left = engine.client().containers.create(name, platform=PLATFORM, labels=gone)
    digest = pull.resolve_digest(name, PLATFORM, NullLog())
    pull.read_image(name, digest, PLATFORM, NullLog())
    assert engine.find_container("local", str(left.id)) is None


def test_an_image_that_the_engine_does_not_have_is_not_read(address: str) -> None:
    with pytest.raises(
        TandemError, match=f"cannot create a container of {address}/{NAME}@sha256:a+ for {PLATFORM}: No such"
    ):
        pull.read_image(f"{address}/{NAME}:1", f"sha256:{'a' * 64}", PLATFORM, NullLog())


def test_an_image_without_python_is_refused_by_its_name(tmp_path: Path) -> None:
    name = f"127.0.0.1:{free_port()}/{NAME}:bare"
    make(tmp_path, name, dockerfile='FROM scratch\nADD root.tar /\nENV PATH=/nowhere\nCMD ["x"]\n', push=False)
    digest = pull.resolve_digest(name, PLATFORM, NullLog())
    with pytest.raises(TandemError, match=rf"^{name}: the image has no python3 on its PATH \(/nowhere\)") as error:
        pull.read_image(name, digest, PLATFORM, NullLog())
    assert "/usr/bin/python3" in error.value.hint
