"""Wheels installed by uv and images made by BuildKit, for real but tiny; the engine is left as it was found."""

import base64
import hashlib
import json
import os
import shutil
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipeline.config.models import DebianBase, DebianImage, Python
from pipeline.core import procs, store, tar
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.log import NullLog
from pipeline.host import buildkit, engine
from pipeline.image import build, wheels
from pipeline.image.build import Parts
from pipeline.image.results import Built, Wheels
from pipeline.lock.contents import DebianLock
from pipeline.lock.debs import Deb
from pipeline.lock.resolver import Wheel
from tests.filestore import put_into_store

EPOCH = 1_700_000_000
HOST = f"{sys.version_info.major}.{sys.version_info.minor}"
REQUEST: dict[str, Any] = {"platform": "linux/arm64", "python": HOST, "debian": "trixie"}
LIBC = Deb("libc6", "2.41-12", "arm64", "0" * 64, 1, "pool/libc6.deb")
LOCK = DebianLock(
    name="tiny", request=REQUEST, cutoff="2026-01-01", epoch=EPOCH, wheels=(), debs=(LIBC,), interpreter=(), tools={}
)
IMAGE = DebianImage(
    base=DebianBase(debian="trixie", packages=("none",)),
    python=Python(version=HOST, requirements=("none",)),
    files="files",
    env={"A": "1"},
    workdir="/srv/here",
)
DOCKERFILE = "FROM scratch\nADD base.tar workdir.tar /\n#: settings\n#: layers\nADD --link own.tar /\n"
SITE = f"usr/local/lib/python{HOST}/dist-packages"


@pytest.fixture
def tag() -> Iterator[str]:
    name = f"tandem-test/build:{uuid4().hex[:8]}"
    yield name
    while engine.find_image("local", name) is not None:
        engine.client().images.remove(name, force=True)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """A base of three files, two layers of wheels, one file of our own."""
    found = Parts(base=tmp_path / "base.tar", wheels=tmp_path / "wheels", folder=tmp_path / "tiny")
    tar.write_archive(
        found.base, {"etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "tmp/x": b"", "usr/bin/x": b""}, EPOCH - 9
    )
    layer(found, "one", b"1")
    layer(found, "two", b"2")
    (found.wheels / wheels.LAYERS_FILE).write_text(json.dumps([{"name": "one"}, {"name": "two"}]))
    (found.folder / "files/work").mkdir(parents=True)
    (found.folder / "files/work/run.sh").write_text("#!/bin/sh\n")
    (found.folder / "files/work/run.sh").chmod(0o755)
    (found.folder / "Dockerfile").write_text(DOCKERFILE)
    return found


def layer(parts: Parts, name: str, content: bytes) -> None:
    parts.wheels.mkdir(exist_ok=True)
    tar.write_archive(parts.wheels / f"{name}.tar", {f"usr/local/lib/{name}.py": content}, EPOCH)


def built(parts: Parts, tag: str, tmp_path: Path) -> Built:
    scratch = tmp_path / uuid4().hex
    scratch.mkdir()
    return build.build("tiny", IMAGE, LOCK, parts, tag, scratch, NullLog(), cache=False)


def content(tag: str, tmp_path: Path) -> dict[str, tarfile.TarInfo]:
    """Every file of an image, by way of a container that is never started."""
    client = engine.client()
    container = client.containers.create(tag, command=["x"], platform="linux/arm64")
    try:
        with (tmp_path / "export.tar").open("wb") as file:
            for chunk in container.export():
                file.write(bytes(chunk))  # type: ignore[arg-type]  # bytes, whatever the stub says
    finally:
        container.remove()
        client.close()
    with tarfile.open(tmp_path / "export.tar") as tar:
        return {member.name.rstrip("/"): member for member in tar}


def test_the_digest_is_in_the_store_and_the_image_says_what_it_should(parts: Parts, tag: str, tmp_path: Path) -> None:
    made = built(parts, tag, tmp_path)
    found = engine.find_image("local", tag)
    assert found["Id"] == made.digest
    assert tuple(found["RootFS"]["Layers"]) == made.diff_ids
    assert (found["Os"], found["Architecture"], found["Created"]) == ("linux", "arm64", "2023-11-14T22:13:20Z")
    config = found["Config"]
    assert (config["WorkingDir"], config["User"], config["Entrypoint"]) == ("/srv/here", "", None)
    assert "A=1" in config["Env"]
    assert config["Labels"] == build.image_labels("tiny", LOCK)


def test_the_engine_s_own_builder_builds_whichever_is_in_use(
    parts: Parts, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDX_CONFIG", str(tmp_path / "buildx"))
    procs.capture(["docker", "buildx", "create", "--driver", "docker-container", "--use"], inherit=procs.DOCKER)
    made = built(parts, tag, tmp_path)
    assert engine.find_image("local", tag)["Id"] == made.digest


def test_files_are_roots_with_the_modes_and_times_of_the_archives(parts: Parts, tag: str, tmp_path: Path) -> None:
    built(parts, tag, tmp_path)
    found = content(tag, tmp_path)
    ours = {name: found[name] for name in ("usr/local/lib/one.py", "srv", "srv/here", "work/run.sh", "usr", "tmp")}
    assert {(m.uid, m.gid) for m in ours.values()} == {(0, 0)}
    assert {name: m.mtime for name, m in ours.items()} == {**dict.fromkeys(ours, EPOCH), "tmp": EPOCH - 9}
    assert {name: oct(m.mode) for name, m in ours.items()} == {
        "usr/local/lib/one.py": "0o644", "srv": "0o755", "srv/here": "0o755", "work/run.sh": "0o755",
        "usr": "0o755", "tmp": "0o1777",
    }  # fmt: skip


def test_the_same_parts_give_the_same_bytes_whatever_this_machine_stamps_on_them(
    parts: Parts, tag: str, tmp_path: Path
) -> None:
    first = built(parts, tag, tmp_path)
    before = os.umask(0o007)
    try:
        elsewhere = tmp_path / "else where"
        shutil.copytree(parts.wheels, elsewhere / "wheels", copy_function=shutil.copyfile)
        shutil.copytree(parts.folder, elsewhere / "tiny", copy_function=shutil.copy)
        shutil.copyfile(parts.base, elsewhere / "base.tar")
    finally:
        os.umask(before)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1_500_000_000, 1_500_000_000))
    other = Parts(base=elsewhere / "base.tar", wheels=elsewhere / "wheels", folder=elsewhere / "tiny")
    assert built(other, tag, tmp_path) == first


def test_another_layer_leaves_the_others_as_they_are(parts: Parts, tag: str, tmp_path: Path) -> None:
    first = built(parts, tag, tmp_path)
    layer(parts, "one", b"other")
    second = built(parts, tag, tmp_path)
    changed = [a == b for a, b in zip(first.diff_ids, second.diff_ids, strict=True)]
    assert changed.count(False) == 1
    assert first.digest != second.digest


def test_what_buildkit_refuses_is_one_message_and_leaves_no_image(parts: Parts, tag: str, tmp_path: Path) -> None:
    (parts.folder / "Dockerfile").write_text(DOCKERFILE + "ADD nowhere.tar /\n")
    with pytest.raises(TandemError, match=r"BuildKit says: .*nowhere\.tar") as caught:
        built(parts, tag, tmp_path)
    assert "Traceback" not in str(caught.value)
    assert engine.find_image("local", tag) is None


def slow(tmp_path: Path) -> Path:
    """A context that takes BuildKit longer than a moment."""
    context = tmp_path / "slow" / "context"
    context.mkdir(parents=True)
    (context / "blob").write_bytes(os.urandom(1 << 20) * 400)
    (context / "Dockerfile").write_text("FROM scratch\nCOPY blob /\n")
    return context


def build_slowly(context: Path, tag: str, within: float) -> str:
    return buildkit.build_image(
        context, platform="linux/arm64", epoch=EPOCH, labels={}, tag=tag, log=NullLog(), cache=False, timeout_s=within
    )


def test_a_build_that_takes_too_long_is_ended(tag: str, tmp_path: Path) -> None:
    with pytest.raises(TandemError, match=r"BuildKit did not end within 0\.5 s"):
        build_slowly(slow(tmp_path), tag, 0.5)
    assert gone(tmp_path / "slow" / "running")
    assert engine.find_image("local", tag) is None


def test_a_build_that_is_interrupted_ends_with_it(tag: str, tmp_path: Path) -> None:
    threading.Timer(0.5, procs.cancel).start()
    try:
        with pytest.raises(Cancelled):
            build_slowly(slow(tmp_path), tag, 60)
    finally:
        procs.resume()
    assert gone(tmp_path / "slow" / "running")


def gone(running: Path) -> bool:
    """Whether the process that leaves its id in this file, sooner or later, ends soon after."""
    for _ in range(300):
        try:
            pid = running.read_text().strip()
            if pid and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            if running.exists():
                return True
        time.sleep(0.1)
    return False


def wheel(tmp_path: Path, name: str, files: dict[str, str], points: str = "") -> Wheel:
    """A wheel in the store, as a lock names it."""
    info = f"{name}-1.0.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": points} if points else {}),
    }
    rows = [f"{path},sha256={_hash(text)},{len(text)}" for path, text in members.items()]
    file = tmp_path / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        for path, text in {**members, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,", ""])}.items():
            made.writestr(path, text)
    sha256 = put_into_store(file)
    return Wheel(name, "1.0", (f"sha256:{sha256}",), file.name, file.stat().st_size)


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DebianLock:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    demo = {"demo/__init__.py": "X = {'a', 'b', 'c'}\n", "demo/bad.py": "def (:\n", "demo/run.py": "def main(): ...\n"}
    points = "[console_scripts]\ndemo = demo.run:main\n"
    return replace(
        LOCK, wheels=(wheel(tmp_path, "demo", demo, points), wheel(tmp_path, "other", {"other.py": "Y = 1\n"}))
    )


def assembled(locked: DebianLock, tmp_path: Path) -> tuple[Path, Wheels]:
    folder = tmp_path / uuid4().hex
    (folder / "scratch").mkdir(parents=True)
    (folder / "into").mkdir()
    found = wheels.fetch_wheels(locked, NullLog())
    python = [sys.executable, "-s"]
    return folder / "into", wheels.assemble_layers(
        locked, found, python, folder / "scratch", folder / "into", NullLog()
    )


def test_wheels_become_layers_with_scripts_records_and_bytecode(locked: DebianLock, tmp_path: Path) -> None:
    into, made = assembled(locked, tmp_path)
    demo = {path: content for tar in into.glob("*.tar") for path, content in everything(tar).items() if "demo" in path}
    assert demo["usr/local/bin/demo"].startswith(b"#!/usr/bin/python3\n")
    record = demo[f"{SITE}/demo-1.0.dist-info/RECORD"].decode()
    script = demo["usr/local/bin/demo"]
    assert f"../../../bin/demo,sha256={_hash(script.decode())},{len(script)}\n" in record
    assert "INSTALLER" not in record
    bytecode = sorted(path for path in demo if path.endswith(".pyc"))
    tail = f"cpython-{HOST.replace('.', '')}.pyc"
    assert bytecode == [f"{SITE}/demo/__pycache__/__init__.{tail}", f"{SITE}/demo/__pycache__/run.{tail}"]
    code = demo[bytecode[1]]
    assert code[4:8] == b"\x03\0\0\0", "a hash that is checked"
    assert f"/{SITE}/demo/run.py".encode() in code
    assert str(tmp_path).encode() not in b"".join(demo.values())
    assert made.layers == {tar.stem: store.file_digest(tar) for tar in into.glob("*.tar")}


def everything(tar: Path) -> dict[str, bytes]:
    with tarfile.open(tar) as opened:
        return {m.name: opened.extractfile(m).read() for m in opened if m.isreg()}  # type: ignore[union-attr]


def test_wheels_give_the_same_bytes_under_another_umask_in_another_folder(locked: DebianLock, tmp_path: Path) -> None:
    _, first = assembled(locked, tmp_path)
    before = os.umask(0o077)
    try:
        _, second = assembled(locked, tmp_path)
    finally:
        os.umask(before)
    assert first == second


def test_a_wheel_whose_bytes_are_not_the_locks_is_not_installed(locked: DebianLock, tmp_path: Path) -> None:
    found = wheels.fetch_wheels(locked, NullLog())
    (tmp_path / "forged").write_bytes(found["demo"].read_bytes() + b" ")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(TandemError, match=r"(?i)hash"):
        wheels.install_wheels(locked, {**found, "demo": tmp_path / "forged"}, tmp_path / "scratch", NullLog())
