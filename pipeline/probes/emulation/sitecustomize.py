"""Makes Ray work under a user-mode emulator: its processes are found by name, and have time to start.

The folder of this file goes into PYTHONPATH of a container, only where an emulator runs it; it is never part of an
image. Without an emulator it changes nothing.

Names: under qemu and binfmt_misc a program sees its own command line unchanged, but that of any other process begins
with the interpreter (and, where argv[0] is preserved, with the path of the program). Ray finds its raylet by argv[0],
and would fail with "No node info found matching attributes". So psutil is patched to omit the emulator's words.

Time: `ray start` gives the raylet 30 s (in ray/_private/node.py), and the raylet gives its agents 30 s to report their
ports (compiled into it). Emulated agents need that long for their imports if another program wants the processor. So
the clock of that module runs slower, and the agents choose and report their ports before they import anything.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

SLOWER = 8


def emulators_words() -> list[str]:
    """Returns the one or two words that an emulator puts before argv, its own path first; none without an emulator."""
    # The emulator rewrites /proc/self, but not /proc/thread-self.
    raw = _words(Path("/proc/thread-self/cmdline"))
    return raw[: len(raw) - len(_words(Path("/proc/self/cmdline")))]


def without(prefix: Sequence[str], cmdline: list[str]) -> list[str]:
    """Returns `cmdline` as the program itself sees it; unchanged if it does not begin as emulated ones do."""
    emulated = bool(prefix) and cmdline[:1] == list(prefix[:1])
    return cmdline[len(prefix) :] if emulated else cmdline


def _words(file: Path) -> list[str]:
    return file.read_bytes().decode(errors="surrogateescape").split("\0")[:-1]


def _names(module: Any) -> None:
    words = emulators_words()
    original: Callable[[Any], list[str]] = module.Process.cmdline
    module.Process.cmdline = lambda process: without(words, original(process))


class _SlowClock:
    """The module `time` with a slower monotonic clock."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / SLOWER


def _patience(module: Any) -> None:
    if emulators_words():
        module.time = _SlowClock()
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(30 * SLOWER))


AGENTS = {
    "ray/dashboard/agent.py": {
        "--grpc-port": "metrics_agent_port",
        "--metrics-export-port": "metrics_export_port",
        "--listen-port": "dashboard_agent_listen_port",
    },
    "ray/_private/runtime_env/agent/main.py": {"--runtime-env-agent-port": "runtime_env_agent_port"},
}
"""The options for ports of Ray's agents, by the end of an agent's path; the raylet waits for these names."""


def announce(argv: Sequence[str]) -> list[str]:
    """Returns an agent's command line with a free port for each port 0, and writes the ports where the raylet looks.

    Returns any other command line unchanged.
    """
    names = next((names for path, names in AGENTS.items() if argv and argv[0].endswith(path)), {})
    options = dict(word.split("=", 1) for word in argv[1:] if "=" in word)
    ports = {option: options[option] for option in names if option in options}
    for option in [option for option, port in ports.items() if port == "0"]:
        ports[option] = str(_free_port())
    for option, port in ports.items():
        file = Path(options["--session-dir"], f"{names[option]}_{options['--node-id']}")
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(port)
        part.replace(file)
    return [f"{option}={ports[option]}" if (option := word.partition("=")[0]) in ports else word for word in argv]


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("", 0))
        port: int = bound.getsockname()[1]
        return port


PATCHES: dict[str, Callable[[Any], None]] = {"psutil._pslinux": _names, "ray._private.node": _patience}
"""The patch of each module."""


class _Patching(Loader):
    """Loads a module as it is, then patches it."""

    def __init__(self, real: Loader, patch: Callable[[Any], None]) -> None:
        self._real = real
        self._patch = patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._patch(module)


class _Finder(MetaPathFinder):
    """Finds the modules to patch, and lets _Patching load them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in PATCHES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader, PATCHES[fullname])
        return spec


sys.meta_path.insert(0, _Finder())
if emulators_words():
    sys.argv[:] = announce(sys.argv)
