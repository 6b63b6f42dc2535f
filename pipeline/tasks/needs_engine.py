"""Tells whether tasks need an engine: `python -m pipeline.tasks.needs_engine WORD …` exits with 0 if one does.

doitw runs it before the machine is set up, for tasks that may need no engine: locks, root filesystems and wheels.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from pipeline.config import loader
from pipeline.config.models import CombinedImage
from pipeline.core.errors import TandemError
from pipeline.graph.selection import select_tasks
from pipeline.tasks import project

KINDS_WITHOUT_ENGINE = ("lock", "base", "wheels", "model")


def needs_engine(root: Path, words: Iterable[str]) -> bool:
    """Returns whether any of these tasks, or of those they need, uses an engine. Raises ConfigError."""
    loaded = loader.load_config(root)
    graph = project.build_graph(loaded)
    for task in graph.order(select_tasks(graph, words)):
        kind, _, name = task.partition(":")
        if kind not in KINDS_WITHOUT_ENGINE or isinstance(loaded.images.get(name), CombinedImage):
            return True
    return False


if __name__ == "__main__":
    try:
        sys.exit(0 if needs_engine(Path.cwd(), sys.argv[1:]) else 1)
    except TandemError:
        sys.exit(1)  # doit reports it
