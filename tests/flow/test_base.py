"""A small base made for real, from locked packages of Debian's mirror."""

import dataclasses
import importlib.util
import os
import tarfile
import time
from pathlib import Path

import pytest

from pipeline.config.models import DebianBase, DebianImage, Python
from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.image import base
from pipeline.image.results import RootFilesystem
from pipeline.lock import lock
from pipeline.lock.contents import DebianLock

PACKAGES = ("base-files", "base-passwd", "bash", "ca-certificates", "dash", "libc-bin", "mawk", "python3")
IMAGE = DebianImage(
    base=DebianBase(debian="trixie", packages=PACKAGES), python=Python(version="3.13", requirements=("idna",))
)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> DebianLock:
    made = lock.lock_image("tiny", IMAGE, tmp_path_factory.mktemp("root"), "", NullLog())
    assert isinstance(made, DebianLock)
    return made


@pytest.fixture(scope="module")
def rootfs(locked: DebianLock, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RootFilesystem]:
    folder = tmp_path_factory.mktemp("base")
    return folder / "rootfs.tar", base.make_root_filesystem(locked, folder, NullLog())


def test_another_umask_time_zone_and_locale_give_the_same_bytes(
    locked: DebianLock, rootfs: tuple[Path, RootFilesystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TZ": "Asia/Kolkata", "LC_ALL": "C", "LANG": "", "PYTHONHASHSEED": "5"}.items():
        monkeypatch.setenv(name, value)
    time.tzset()
    before = os.umask(0o077)
    try:
        again = base.make_root_filesystem(locked, tmp_path, NullLog())
    finally:
        os.umask(before)
        monkeypatch.undo()
        time.tzset()
    assert again == rootfs[1]
    assert (tmp_path / "rootfs.tar").stat().st_mode == rootfs[0].stat().st_mode
    assert [path.name for path in tmp_path.iterdir()] == ["rootfs.tar"]


def test_every_module_has_bytecode_for_the_path_it_will_have(rootfs: tuple[Path, RootFilesystem]) -> None:
    with tarfile.open(rootfs[0]) as archive:
        names = set(archive.getnames())
        regular = {member.name for member in archive if member.isreg()}
        compiled = archive.extractfile("usr/lib/python3.13/__pycache__/abc.cpython-313.pyc")
        assert compiled is not None
        head = compiled.read()
    modules = {name for name in regular if name.startswith("usr/lib/python3.13/") and name.endswith(".py")}
    pairs = {f"{name.rpartition('/')[0]}/__pycache__/{Path(name).stem}.cpython-313.pyc" for name in modules}
    assert not pairs - names
    assert head[4:8] == b"\x03\x00\x00\x00", "the source's hash must be there and checked: mods patch sources"
    assert b"/usr/lib/python3.13/abc.py" in head
    assert importlib.util.MAGIC_NUMBER[2:] == head[2:4]


def test_scanners_find_every_package_in_the_manner_of_distroless(
    locked: DebianLock, rootfs: tuple[Path, RootFilesystem]
) -> None:
    with tarfile.open(rootfs[0]) as archive:
        listed = {name for name in archive.getnames() if name.startswith("var/lib/dpkg/status.d/")}
        bash = archive.extractfile("var/lib/dpkg/status.d/bash")
        assert bash is not None
        text = bash.read().decode()
    assert {f"var/lib/dpkg/status.d/{deb.name}" for deb in locked.debs} <= listed
    version = next(deb.version for deb in locked.debs if deb.name == "bash")
    assert {"Package: bash", f"Version: {version}"} <= set(text.splitlines())
    assert rootfs[1].packages == len(locked.debs)


def test_a_link_that_the_image_needs_leads_somewhere(rootfs: tuple[Path, RootFilesystem]) -> None:
    with tarfile.open(rootfs[0]) as archive:
        members = {member.name: member for member in archive}
    for start in ("usr/bin/sh", "usr/bin/awk", "usr/bin/python3", "bin", "lib", "usr/bin/which"):
        path = start
        while members[path].issym():
            to = members[path].linkname
            path = to.lstrip("/") if to.startswith("/") or "/" not in path else f"{path.rpartition('/')[0]}/{to}"
        assert path in members, start


def test_a_package_that_nobody_has_any_more_is_named_with_its_remedy(locked: DebianLock, tmp_path: Path) -> None:
    lost = [
        dataclasses.replace(deb, version="0.0", sha256="0" * 64, path="pool/main/b/bash/bash_0.0_arm64.deb")
        if deb.name == "bash"
        else deb
        for deb in locked.debs
    ]
    with pytest.raises(TandemError, match=r"lockfiles/tiny\.debs\.txt: bash 0\.0 \(arm64\) is neither") as caught:
        base.make_root_filesystem(dataclasses.replace(locked, debs=tuple(lost)), tmp_path, NullLog())
    assert "TANDEM_LOCK=upgrade:bash ./doitw lock:tiny" in caught.value.hint
    assert not (tmp_path / "rootfs.tar").exists()
