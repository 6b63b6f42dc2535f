"""What is fetched, what is refused, what belongs to which layer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.image import wheels
from pipeline.image.installed_tree import Distribution
from pipeline.lock import place
from pipeline.lock.contents import DebianLock
from pipeline.lock.debs import Deb
from pipeline.lock.resolver import Wheel
from tests.filestore import put_into_store

SITE = "usr/local/lib/python3.13/dist-packages"
REQUEST: dict[str, Any] = {"platform": "linux/arm64", "python": "3.13", "debian": "trixie"}
LIBC = Deb("libc6", "2.41-12", "arm64", "0" * 64, 1, "pool/libc6.deb")
LOCK = DebianLock(
    name="cpu", request=REQUEST, cutoff="2026-01-01", epoch=5, wheels=(), debs=(LIBC,), interpreter=(), tools={}
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stored(tmp_path: Path, name: str) -> Wheel:
    file = tmp_path / f"{name}-1.0-py3-none-any.whl"
    file.write_bytes(name.encode())
    sha256 = put_into_store(file)
    return Wheel(name, "1.0", (f"sha256:{sha256}",), file.name, file.stat().st_size)


def test_wheels_that_the_store_has_need_no_network(tmp_path: Path) -> None:
    locked = replace(LOCK, wheels=(stored(tmp_path, "a"), stored(tmp_path, "b")))
    found = wheels.fetch_wheels(locked, NullLog())
    assert {name: path.read_text() for name, path in found.items()} == {"a": "a", "b": "b"}


def test_uv_is_asked_for_the_target_and_for_nothing_from_the_network(tmp_path: Path) -> None:
    words = wheels.uv_arguments(LOCK, tmp_path / "links", tmp_path / "r.txt", tmp_path)
    options = dict(zip(words, [*words[1:], ""], strict=True))
    assert options["--python-platform"] == "aarch64-manylinux_2_40"
    assert options["--python-version"] == "3.13"
    assert {"--no-index", "--require-hashes", "--no-deps", "--no-config"} <= set(words)


def test_bytecode_lies_where_python_looks_for_it() -> None:
    assert wheels.bytecode_path("a/b.py", "3.13") == "a/__pycache__/b.cpython-313.pyc"
    assert wheels.bytecode_path("six.py", "3.9") == "__pycache__/six.cpython-39.pyc"


def test_files_of_one_folder_are_compiled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "FILES_AT_ONCE", 3)
    names = ["b/1.py", "a/1.py", "a/sub/1.py", "a/2.py", "c.py", "a/3.py", "a/4.py"]
    assert list(wheels.portions(names)) == [["c.py", "a/1.py", "a/2.py", "a/3.py", "a/4.py"], ["a/sub/1.py", "b/1.py"]]


def test_portions_depend_on_the_files_and_not_on_their_order() -> None:
    names = [f"{folder}/{n}.py" for folder in "abc" for n in range(5)]
    assert list(wheels.portions(names)) == list(wheels.portions(names[::-1]))


def test_a_distribution_has_its_files_and_their_bytecode() -> None:
    site = Path("/tree")
    demo = Distribution("demo", {"demo/a.py": f"{SITE}/demo/a.py", "bin/x.py": "usr/local/bin/x.py"})
    assert wheels.layer_members(
        site, demo, {"demo/__pycache__/a.cpython-313.pyc"}, place.debian_place("3.13"), "3.13"
    ) == {
        f"{SITE}/demo/a.py": site / "demo/a.py",
        f"{SITE}/demo/__pycache__/a.cpython-313.pyc": site / "demo/__pycache__/a.cpython-313.pyc",
        "usr/local/bin/x.py": site / "bin/x.py",
    }


def test_code_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"\x7fELF\x02\x01" + bytes(12) + (62).to_bytes(2, "little"))
    with pytest.raises(TandemError, match=r"demo holds code that does not run on linux/arm64: x\.so \(x86-64\)"):
        wheels.refuse_wrong_architecture(tmp_path, [Distribution("demo", {"x.so": f"{SITE}/x.so"})], LOCK)
