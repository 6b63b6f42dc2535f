"""What was read of an image is kept until the code that decides it is another."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.foreign import facts_cache
from pipeline.foreign.facts import ImageFacts, Interpreter
from pipeline.foreign.pull import ImageScan

ROOT = Path(__file__).parents[3]
DIGEST = f"sha256:{'a' * 64}"
PYTHON = Interpreter(
    path="/usr/bin/python3", program="/usr/bin/python3.12", version="3.12.3", kind="system", site="/s", scripts="/b"
)
SCAN = ImageScan(
    ImageFacts(digest=DIGEST, platform="linux/arm64", glibc=39, python=PYTHON), (b"f opt/caf\xe9.txt", b"d opt")
)
DECIDES_NO_FACT = {"core/redact", "core/sensitive", "core/errors"}


def cache_file(root: Path) -> Path:
    return facts_cache.cache_file(root, DIGEST, "linux/arm64", "reading", facts_cache.FACTS_CODE)


def imported(name: str) -> Iterator[str]:
    """The modules of ours that a module imports, as paths below pipeline/ without .py."""
    for node in ast.walk(ast.parse((ROOT / f"pipeline/{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pipeline."):
            package = str(node.module).removeprefix("pipeline.").replace(".", "/")
            is_module = (ROOT / f"pipeline/{package}.py").is_file()
            yield from [package] if is_module else [f"{package}/{alias.name}" for alias in node.names]


def closure(name: str) -> set[str]:
    known, waiting = {name}, [name]
    while waiting:
        new = set(imported(waiting.pop())) - known
        known |= new
        waiting += new
    return known


def test_paths_that_are_not_utf8_are_kept_with_the_facts(tmp_path: Path) -> None:
    file = cache_file(tmp_path)
    facts_cache.store(file, SCAN)
    assert facts_cache.load(file, ImageScan) == SCAN


def test_a_damaged_file_counts_as_missing(tmp_path: Path) -> None:
    file = cache_file(tmp_path)
    facts_cache.store(file, SCAN)
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        assert facts_cache.load(file, ImageScan) in (None, SCAN)
        file.write_bytes(content[:at])
        assert facts_cache.load(file, ImageScan) is None


def test_a_folder_that_cannot_be_written_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("")
    file = cache_file(tmp_path)
    facts_cache.store(file, SCAN)
    assert facts_cache.load(file, ImageScan) is None


def test_every_module_that_reading_an_image_uses_is_part_of_the_key() -> None:
    assert closure("foreign/inspection") - DECIDES_NO_FACT <= set(facts_cache.FACTS_CODE)


@pytest.mark.parametrize("name", facts_cache.FACTS_CODE)
def test_a_changed_module_gives_another_key(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("foreign", "core", "config"):
        shutil.copytree(ROOT / "pipeline" / room, tmp_path / room)
    monkeypatch.setattr(facts_cache, "ROOM", tmp_path / "foreign")
    before = cache_file(tmp_path)
    with (tmp_path / f"{name}.py").open("a") as module:
        module.write("# changed\n")
    assert cache_file(tmp_path) != before
