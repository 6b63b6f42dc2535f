"""Resolving for real: uv against the package index, apt against Debian's mirror."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config.models import DebianBase, DebianImage, Python
from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import NullLog
from pipeline.lock import apt as aptroot
from pipeline.lock import debs, lock, lockfile, resolver, wheel_tags
from pipeline.lock.apt import Apt
from pipeline.lock.contents import DebianLock
from tests import tinydeb
from tests.filestore import put_into_store

TARGET = wheel_tags.WheelTarget("arm64", "3.13", 41)
BASE = DebianBase(debian="trixie", packages=("base-files", "base-passwd", "dash", "python3-minimal"))


def image(*requirements: str, cutoff: str | None = None, base: DebianBase = BASE) -> DebianImage:
    return DebianImage(base=base, python=Python(version="3.13", requirements=requirements, cutoff=cutoff))


def asked(*requirements: str, constraints: tuple[str, ...] = ()) -> resolver.WheelRequest:
    return resolver.WheelRequest(
        requirements=requirements,
        constraints=constraints,
        target=TARGET,
        cutoff="2026-06-01",
        origin="dockerfiles/seed/image.yaml",
        pins={},
    )


@pytest.fixture(scope="module")
def apt() -> Iterator[Apt]:
    with aptroot.private_apt("trixie", "arm64", NullLog()) as private:
        yield private


def locked(asked: DebianImage, root: Path, mode: str) -> DebianLock:
    made = lock.lock_image("tiny", asked, root, mode, NullLog())
    assert isinstance(made, DebianLock)
    return made


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DebianLock]:
    """A first lock; by its date idna is at 3.7. The host's own apt lists must not change by it."""
    root, lists = tmp_path_factory.mktemp("root"), Path("/var/lib/apt/lists")
    before = {path.name: path.stat().st_mtime_ns for path in lists.iterdir()}
    made = locked(image("idna", cutoff="2024-06-01"), root, "")
    assert {path.name: path.stat().st_mtime_ns for path in lists.iterdir()} == before
    return root, made


def versions(made: DebianLock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in made.wheels}


def test_the_shortcut_of_the_field_is_refused_with_both_sides() -> None:
    with pytest.raises(ConfigError) as caught:
        resolver.resolve_wheels(asked("vllm==0.14.1", "transformers>=5"), NullLog())
    said = str(caught.value)
    assert "vllm 0.14.1 wants transformers>=4.56.0,<5" in said
    assert "dockerfiles/seed/image.yaml asks for transformers>=5 (python.requirements)" in said


def test_a_constraint_that_leaves_nothing_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        resolver.resolve_wheels(asked("six", constraints=("six==99",)), NullLog())
    assert "six==99 (python.constraints)" in str(caught.value)


def test_a_package_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="the index has no package tandem-no-such-package"):
        resolver.resolve_wheels(asked("tandem-no-such-package==1"), NullLog())


def test_a_package_without_wheels_for_the_target_is_named_before_any_download() -> None:
    with pytest.raises(ConfigError, match="pywin32"):
        resolver.resolve_wheels(asked("pywin32"), NullLog())


def test_without_a_network_there_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(TandemError, match="the package index cannot be reached") as caught:
        resolver.resolve_wheels(asked("six"), NullLog())
    assert not isinstance(caught.value, ConfigError)


def test_a_wheel_of_the_target_is_chosen_with_its_file_and_hash() -> None:
    wheels = {wheel.name: wheel for wheel in resolver.resolve_wheels(asked("numpy==2.3.0"), NullLog())}
    numpy = wheels["numpy"]
    assert numpy.file.startswith("numpy-2.3.0-cp313-cp313-manylinux")
    assert "aarch64" in numpy.file
    assert numpy.size > 10_000_000
    assert numpy.sha256 in resolver.locate_wheels([numpy], TARGET, NullLog())


def test_a_lock_holds_an_interpreter_for_both_kinds_of_build_machine(first: tuple[Path, DebianLock]) -> None:
    found = {(deb.name, deb.arch) for deb in first[1].interpreter}
    assert {("python3.13-minimal", "amd64"), ("python3.13-minimal", "arm64")} <= found


def test_no_recommendations_and_no_hosts_enter_a_lock(first: tuple[Path, DebianLock]) -> None:
    root, made = first
    assert len(made.debs) < 30
    assert {deb.arch for deb in made.debs} <= {"arm64", "all"}
    text = "".join(path.read_text() for path in (root / "lockfiles").iterdir())
    assert "://" not in text
    assert not any(source.uri.split("/")[2] in text for source in debs.package_sources("trixie"))


def test_a_cutoff_date_decides_versions_and_epoch(first: tuple[Path, DebianLock]) -> None:
    assert versions(first[1]) == {"idna": "3.7"}
    assert (first[1].cutoff, first[1].epoch) == ("2024-06-01", 1_717_200_000)


def test_relocking_is_a_no_op_when_nothing_moved(first: tuple[Path, DebianLock]) -> None:
    root, _ = first
    before = {path.name: path.read_bytes() for path in (root / "lockfiles").iterdir()}
    lock.lock_image("tiny", image("idna", cutoff="2024-06-01"), root, "upgrade", NullLog())
    assert {path.name: path.read_bytes() for path in (root / "lockfiles").iterdir()} == before


def test_a_changed_request_moves_no_pin_that_it_need_not(first: tuple[Path, DebianLock], tmp_path: Path) -> None:
    root, old = first
    shutil.copytree(root / "lockfiles", tmp_path / "lockfiles")
    new = locked(image("idna", "six"), tmp_path, "")
    assert versions(new) == {"idna": "3.7", "six": "1.16.0"}
    assert (new.debs, new.interpreter, new.epoch) == (old.debs, old.interpreter, old.epoch)
    assert lockfile.read_lock("tiny", tmp_path) == new
    named = locked(image("idna", "six"), tmp_path, "upgrade:idna")
    assert versions(named)["idna"] != "3.7"
    assert versions(named)["six"] == "1.16.0"
    assert (named.debs, named.epoch) == (old.debs, old.epoch)


def test_a_package_that_the_suite_does_not_have_is_refused(apt: Apt) -> None:
    with pytest.raises(ConfigError, match=r"trixie has no package tandem-no-such for arm64"):
        apt.resolve(["tandem-no-such"])


def test_a_version_that_only_the_store_still_has_is_kept(
    apt: Apt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old = tinydeb.make(tmp_path / "netbase.deb", "netbase", {}, version="0.1")
    assert apt.resolve(["netbase"], [old])[0].version != "0.1"
    assert put_into_store(tmp_path / "netbase.deb") == old.sha256
    assert apt.resolve(["netbase"], [old]) == (old,)


def test_a_pin_that_another_package_rules_out_is_let_go_and_only_that_one(
    apt: Apt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old = [
        tinydeb.make(tmp_path / f"{name}.deb", name, {}, version="0.1") for name in ("libpython3.13-minimal", "netbase")
    ]
    for package in old:
        assert put_into_store(tmp_path / f"{package.name}.deb") == package.sha256
    found = {package.name: package for package in apt.resolve(["python3.13-minimal", "netbase"], old)}
    assert found["netbase"] == old[1]
    assert found["libpython3.13-minimal"].version == found["python3.13-minimal"].version != "0.1"
