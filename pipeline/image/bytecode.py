"""Bytecode of a tree that will lie elsewhere: made by the locked interpreter, the same each time."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.core import procs

SCRIPT = Path(__file__).parents[1] / "probes" / "bytecode.py"


def compile_tree(python: Sequence[str], tree: Path, prefix: str, names: Sequence[str]) -> list[str]:
    """Compile files of a tree, and return the .pyc files beside them, both relative to the tree and sorted.

    `python` is the argv prefix of interpreter(), `prefix` the tree's folder in the image. Sources that do not compile
    have no .pyc. Raises ProgramError if the interpreter fails.
    """
    workers = str(os.cpu_count() or 1)
    argv = [*python, str(SCRIPT), str(tree), prefix, workers]
    procs.capture(argv, within=1800, stdin="\n".join(names))
    folders = sorted({(tree / name).parent for name in names})
    return sorted(str(path.relative_to(tree)) for folder in folders for path in folder.glob("__pycache__/*.pyc"))
