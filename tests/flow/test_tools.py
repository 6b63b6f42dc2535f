"""Tools that are asked for their version: started only when their file changed."""

import time
from pathlib import Path

import pytest

from pipeline.core.errors import HostError
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.tools import identity_of_program


def tool(folder: Path, version: str) -> None:
    """A program that counts how often it is started."""
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\necho started >> {folder}/count\necho tool {version} $1\n")
    path.chmod(0o755)
    # What is asked in the tick of the last change is asked again.
    time.sleep(0.03)


def test_a_tool_is_started_again_only_when_its_file_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool(tmp_path, "1")
    for _ in range(3):
        cache = StatCache(tmp_path / "stats.json")
        assert identity_of_program("tool", ("--version",), cache)() == "tool 1 --version"
        cache.save()
    assert (tmp_path / "count").read_text() == "started\n"
    tool(tmp_path, "2")
    assert identity_of_program("tool", ("--version",), StatCache(tmp_path / "stats.json"))() == "tool 2 --version"


def test_a_tool_that_is_not_installed_is_named() -> None:
    with pytest.raises(HostError, match="no-such-tool is not installed"):
        identity_of_program("no-such-tool", (), StatCache(Path("/nowhere")))()
