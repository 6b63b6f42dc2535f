"""What `pipeline.host.needs` makes of a machine; engines are sockets of the test's own that answer as engines do."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import HostError
from pipeline.host import endpoint, needs
from pipeline.host.needs import Need

AARCH64 = """enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: PF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
FITS = {"ServerVersion": "26.1.5+dfsg1", "Driver": "overlayfs", "DriverStatus": [["driver-type", needs.SNAPSHOTTER]]}


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of the test's own, whose buildx was asked before."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "BUILDX_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plugin = tmp_path / "docker/cli-plugins/docker-buildx"
    plugin.parent.mkdir(parents=True)
    plugin.touch(0o755)
    (tmp_path / "cache/tandem").mkdir(parents=True)
    remember(tmp_path, "0.13.1+ds1")


def remember(folder: Path, version: str) -> None:
    plugin = folder / "docker/cli-plugins/docker-buildx"
    state = plugin.stat()
    kept = {"identity": f"{plugin} {state.st_size} {state.st_mtime_ns} {state.st_ino}", "version": version}
    (folder / "cache/tandem/buildx.json").write_text(json.dumps(kept))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Need]]]:
    """look() at an engine that says the given things of itself."""
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")

        def look(status: int = 200, **info: Any) -> list[Need]:
            def answer() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(f"HTTP/1.0 {status} x\r\n\r\n{json.dumps(FITS | info)}".encode())

            thread = threading.Thread(target=answer)
            thread.start()
            seen = needs.list_needs()
            thread.join()
            return seen

        yield look


def need(seen: list[Need], name: str) -> Need:
    return next(need for need in seen if need.name == name)


def register(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    for always in ("register", "status"):
        (folder / always).write_text("enabled\n")
    (folder / name).write_text(text)


def test_an_engine_of_26_with_the_containerd_store_fits(engine: Callable[..., list[Need]]) -> None:
    seen = engine()
    assert need(seen, "engine").ok
    assert need(seen, "image store").ok


@pytest.mark.parametrize(
    ("found", "fits"), [("20.10.24+dfsg1", False), ("25.0.5", False), ("26.0.0", True), ("29.1", True)]
)
def test_the_engine_must_be_26_or_later(engine: Callable[..., list[Need]], found: str, fits: bool) -> None:
    assert need(engine(ServerVersion=found), "engine").ok is fits


def test_a_classic_store_is_refused_with_the_remedy(engine: Callable[..., list[Need]], tmp_path: Path) -> None:
    # A builder in a container of its own does not change what the store knows.
    (tmp_path / "docker/buildx/instances").mkdir(parents=True)
    (tmp_path / "docker/buildx/instances/mine").write_text('{"Name": "mine", "Driver": "docker-container"}')
    store = need(engine(Driver="overlay2", DriverStatus=[["Backing Filesystem", "extfs"]]), "image store")
    assert not store.ok
    assert "containerd-snapshotter" in store.remedy


def test_the_engine_s_own_builder_is_the_one_of_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    assert endpoint.docker_context() == "default"
    (tmp_path / "config.json").write_text('{"currentContext": "rootless"}')
    assert endpoint.docker_context() == "rootless"
    monkeypatch.setenv("DOCKER_CONTEXT", "remote")
    assert endpoint.docker_context() == "remote"
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert endpoint.docker_context() == "default"


def test_a_context_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "nope")
    with pytest.raises(HostError, match="docker has no context 'nope'"):
        endpoint.docker_host()


def test_an_engine_that_answers_with_an_error_does_not_count(engine: Callable[..., list[Need]]) -> None:
    assert "answers 500" in need(engine(status=500), "engine").found


def test_an_engine_elsewhere_that_does_not_answer_is_named_with_what_points_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    found = need(needs.list_needs(), "engine")
    assert f"{tmp_path}/none.sock" in found.found
    assert "DOCKER_HOST" in found.remedy


def test_the_platform_of_the_engine_needs_no_emulator(engine: Callable[..., list[Need]]) -> None:
    assert not [need for need in engine(Architecture="aarch64") if need.name.startswith("emulation")]
    assert [need for need in engine(Architecture="x86_64") if need.name == "emulation of linux/arm64"]


def test_the_context_of_the_client_decides_unless_the_environment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoint.docker_host() == ""
    meta = tmp_path / "docker/contexts/meta" / sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text('{"Endpoints": {"docker": {"Host": "ssh://me@far"}}}')
    (tmp_path / "docker/config.json").write_text('{"currentContext": "far"}')
    assert endpoint.docker_host() == "ssh://me@far"
    monkeypatch.setenv("DOCKER_HOST", "tcp://near:1")
    assert endpoint.docker_host() == "tcp://near:1"


def test_a_broken_client_configuration_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "docker/config.json").write_text("{")
    assert endpoint.docker_host() == ""


def test_the_buildx_version_is_remembered_as_long_as_its_file_is_the_same(
    engine: Callable[..., list[Need]], tmp_path: Path
) -> None:
    assert need(engine(), "buildx").ok
    remember(tmp_path, "v0.12.9")
    assert not need(engine(), "buildx").ok


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (AARCH64, "PF"),
        (AARCH64.replace("PF", "OC"), "OC"),
        (AARCH64.replace("enabled", "disabled"), ""),
        (AARCH64.replace("0200b700", "0200f300"), ""),
        ("enabled\ninterpreter /usr/bin/python3\nflags: F\nextension .py\n", ""),
    ],
    ids=["registered", "without F", "switched off", "riscv64", "by file name"],
)
def test_the_kernels_register_is_read_by_what_it_runs(tmp_path: Path, text: str, flags: str) -> None:
    register(tmp_path / "binfmt", "any-name", text)
    assert needs.registered_emulator("linux/arm64", tmp_path / "binfmt")[1] == flags


@pytest.mark.parametrize(
    ("text", "numbers"), [("v0.13.1+ds1", (0, 13, 1)), ("26.1.5+dfsg1", (26, 1, 5)), ("29", (29,)), ("dev", ())]
)
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert needs.version_numbers(text) == numbers


def test_the_table_names_what_is_missing_and_how_to_get_it() -> None:
    seen = [
        Need("engine", True, "26", ">= 26"),
        Need("ssh client", False, "nothing", "on PATH", "install openssh-client"),
    ]
    table = needs.needs_table(seen)
    assert table.splitlines()[2].startswith("MISSING  ssh client")
    assert table.splitlines()[-1] == "ssh client: install openssh-client"


def test_no_permission_is_told_apart_from_no_engine() -> None:
    found = needs._engine_need("", None, os.strerror(13))
    assert "usermod" in found.remedy
