"""Compile the .py files named on stdin (relative to a folder); runs under a locked interpreter.

usage: bytecode.py FOLDER PREFIX WORKERS

PREFIX is where FOLDER will lie in the image: the path that ends up in the code. A .pyc holds its source's hash, which
is checked when it is read: it is good whatever mtime the source gets, and not taken once the source was patched, as
launchers' mods do with vLLM. Files that do not compile (templates, tests of syntax errors) are left as they are. It
forks by itself: under an explicit dynamic linker sys.executable is not Python.

What was compiled before in the same process shows in the bytecode: which equal constants are one object depends on what
was interned. So every folder has a process of its own that starts from the same state, and neither the number of
workers nor other folders can be seen in it.
"""

import itertools
import os
import py_compile
import sys
from collections.abc import Callable, Sequence
from functools import partial


def compile_all(folder: str, prefix: str, names: list[str]) -> None:
    """Compile each file below `folder`, without a word for those that cannot be."""
    for name in names:
        py_compile.compile(
            f"{folder}/{name}",
            dfile=f"{prefix.rstrip('/')}/{name}",
            quiet=2,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )


def fork(work: Callable[[], None]) -> int:
    """Do something in a process of its own, and return its id; its status is 0 if that ended well."""
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
    """Compile batches of files one after the other, each in a process of its own."""
    for names in batches:
        if os.waitpid(fork(partial(compile_all, folder, prefix, names)), 0)[1]:
            raise SystemExit(1)


def main() -> int:
    """Share the folders among WORKERS processes; the status is 0 if all of them ended well."""
    folder, prefix, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names = sorted(sys.stdin.read().splitlines(), key=os.path.split)
    batches = [list(group) for _, group in itertools.groupby(names, os.path.dirname)]
    shares = [batches[index::workers] for index in range(workers)]
    children = [fork(partial(compile_folders, folder, prefix, share)) for share in shares]
    ended = [os.waitpid(child, 0)[1] for child in children]
    return int(any(ended))


if __name__ == "__main__":
    sys.exit(main())
