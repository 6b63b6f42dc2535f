"""Compile the .py files named on stdin (relative to a folder); runs under a locked interpreter.

usage: bytecode.py FOLDER PREFIX WORKERS

PREFIX is where FOLDER will lie in the image: the path that ends up in the code. The hash in a .pyc is unchecked, so
that it holds whatever mtime the source gets. Files that do not compile (templates, tests of syntax errors) are left
as they are. It forks by itself: under an explicit dynamic linker sys.executable is not Python.
"""

import os
import py_compile
import sys


def compile_all(folder: str, prefix: str, names: list[str]) -> None:
    """Compile each file below `folder`, without a word for those that cannot be."""
    for name in names:
        py_compile.compile(
            f"{folder}/{name}",
            dfile=f"{prefix.rstrip('/')}/{name}",
            quiet=2,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def main() -> int:
    """Share the files among WORKERS processes; the status is 0 if all of them ended well."""
    folder, prefix, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names = sys.stdin.read().splitlines()
    children = []
    for index in range(workers):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                compile_all(folder, prefix, names[index::workers])
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return int(any(os.waitpid(child, 0)[1] for child in children))


if __name__ == "__main__":
    sys.exit(main())
