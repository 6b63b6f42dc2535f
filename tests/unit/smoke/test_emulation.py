"""The shim that is mounted where an emulator runs the image."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.smoke.containers import PROBES

WORDS = ["/usr/libexec/qemu-binfmt/aarch64-binfmt-P", "/usr/bin/python3"]


@pytest.fixture
def shim(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    spec = spec_from_file_location("shim", PROBES / "emulation" / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_emulators_words_are_left_out_whichever_program_it_runs(shim: Any) -> None:
    raylet = [WORDS[0], "/opt/ray/raylet", "/opt/ray/raylet", "--node_id=1"]
    assert shim.without(WORDS, raylet) == ["/opt/ray/raylet", "--node_id=1"]
    assert shim.without(WORDS[:1], [WORDS[0], "/opt/ray/raylet", "-x"]) == ["/opt/ray/raylet", "-x"]


def test_other_command_lines_stay_as_they_are(shim: Any) -> None:
    assert shim.without(WORDS, ["sleep", "infinity"]) == ["sleep", "infinity"]
    assert shim.without([], ["sleep", "infinity"]) == ["sleep", "infinity"]
    assert shim.without(WORDS, []) == []


def test_without_an_emulator_nothing_changes(shim: Any) -> None:
    assert shim.emulators_words() == []
    module = ModuleType("node")
    shim.PATCHES["ray._private.node"](module)
    assert not hasattr(module, "time")


def test_under_an_emulator_rays_clock_is_slower(shim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "emulators_words", lambda: WORDS)
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "7")
    module: Any = ModuleType("node")
    shim.PATCHES["ray._private.node"](module)
    import time

    before = time.monotonic()
    assert before / shim.SLOWER <= module.time.monotonic() <= time.monotonic() / shim.SLOWER
    assert module.time.time() >= 1e9


def test_rays_agents_say_their_ports_before_they_import_anything(shim: Any, tmp_path: Path) -> None:
    agent = "/usr/lib/ray/dashboard/agent.py"
    options = [f"--session-dir={tmp_path}", "--node-id=ab", "--grpc-port=0", "--listen-port=52365", "--log-dir="]
    changed = shim.announce([agent, *options])
    port = (tmp_path / "metrics_agent_port_ab").read_text()
    assert int(port) > 0
    assert changed == [agent, *options[:2], f"--grpc-port={port}", *options[3:]]
    assert (tmp_path / "dashboard_agent_listen_port_ab").read_text() == "52365"
    assert len(list(tmp_path.iterdir())) == 2


def test_other_programs_keep_their_command_line(shim: Any) -> None:
    argv = ["/usr/bin/vllm", "serve", "--grpc-port=0"]
    assert shim.announce(argv) == argv
    assert shim.announce([]) == []


def test_a_module_is_patched_in_whatever_folder_it_lies(
    shim: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "psutil"
    package.mkdir()
    (package / "__init__.py").write_text("")
    cmdline = [*WORDS, "raylet"]
    (package / "_pslinux.py").write_text(f"class Process:\n    def cmdline(self):\n        return {cmdline}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(shim, "emulators_words", lambda: WORDS)
    for name in ("psutil", "psutil._pslinux"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    from importlib import import_module

    module: Any = import_module("psutil._pslinux")
    monkeypatch.delitem(sys.modules, "psutil._pslinux")
    monkeypatch.delitem(sys.modules, "psutil")
    assert module.Process().cmdline() == ["raylet"]
