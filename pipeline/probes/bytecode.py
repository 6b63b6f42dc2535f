"""Compiles the .py files named on stdin (relative to a folder); runs under a locked interpreter.

usage: bytecode.py FOLDER PREFIX WORKERS

PREFIX is the folder's path in the image, which the code objects name. Python checks a .pyc by its source's hash: the
source may have any mtime, and a source that was patched (as launchers' mods do with vLLM) is compiled again. Files that
do not compile (templates, tests of syntax errors) are skipped. Workers are forked here: under an explicit dynamic
linker sys.executable is not Python.

Bytecode depends on what the same process has compiled before: which equal constants are one object depends on what was
interned. So every folder has a process of its own that starts from the same state, and its bytecode depends neither on
the number of workers nor on other folders.
"""

import itertools
import os
import py_compile
import sys
from collections.abc import Callable, Sequence
from functools import partial


def compile_all(folder: str, prefix: str, names: list[str]) -> None:
    """Compiles each file below `folder`; skips those that do not compile."""
    for name in names:
        py_compile.compile(
            f"{folder}/{name}",
            dfile=f"{prefix.rstrip('/')}/{name}",
            quiet=2,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )


def fork(work: Callable[[], None]) -> int:
    """Does the work in a new process, and returns its id; the process ends with status 0 unless the work raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def compile_folders(folder: str, prefix: str, batches: Sequence[list[str]]) -> None:
    """Compiles batches of files one after the other, each in a process of its own."""
    for names in batches:
        if os.waitpid(fork(partial(compile_all, folder, prefix, names)), 0)[1]:
            raise SystemExit(1)


def main() -> int:
    """Divides the folders among WORKERS processes; returns 0 if all of them succeeded."""
    folder, prefix, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names = sorted(sys.stdin.read().splitlines(), key=os.path.split)
    batches = [list(group) for _, group in itertools.groupby(names, os.path.dirname)]
    shares = [batches[index::workers] for index in range(workers)]
    children = [fork(partial(compile_folders, folder, prefix, share)) for share in shares]
    ended = [os.waitpid(child, 0)[1] for child in children]
    return int(any(ended))


if __name__ == "__main__":
    sys.exit(main())
