"""Takes a user-mode emulator's own words out of what psutil says of other processes' command lines.

Under qemu and binfmt_misc a program sees its own command line as it should be, but that of any other process
begins with the interpreter (and, where argv[0] is preserved, the path of the program). Ray finds its raylet by
argv[0] and then says "No node info found matching attributes". The folder of this file goes into PYTHONPATH of a
container, only where an emulator runs it; it is never part of an image. Without an emulator it changes nothing.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

# psutil's Linux half under any parent: Ray brings a psutil of its own.
PATCHED = "psutil._pslinux"


def emulators_words() -> list[str]:
    """What the emulator puts before argv: none without one, else one or two words, its own path first."""
    # The emulator rewrites /proc/self, but not /proc/thread-self.
    raw = _words(Path("/proc/thread-self/cmdline"))
    return raw[: len(raw) - len(_words(Path("/proc/self/cmdline")))]


def without(prefix: Sequence[str], cmdline: list[str]) -> list[str]:
    """`cmdline` as the program itself sees it; untouched if it does not begin as emulated ones do."""
    emulated = bool(prefix) and cmdline[:1] == list(prefix[:1])
    return cmdline[len(prefix) :] if emulated else cmdline


def _words(file: Path) -> list[str]:
    return file.read_bytes().decode(errors="surrogateescape").split("\0")[:-1]


class _Patch(Loader):
    """Loads the module as it is, then wraps Process.cmdline."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        words = emulators_words()
        original: Callable[[Any], list[str]] = module.Process.cmdline

        def cmdline(process: Any) -> list[str]:
            return without(words, original(process))

        module.Process.cmdline = cmdline


class _Finder(MetaPathFinder):
    """Finds PATCHED where it is, and has it loaded by _Patch."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PATCHED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patch(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
