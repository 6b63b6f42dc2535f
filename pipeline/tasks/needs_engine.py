"""Whether a command's tasks need an engine: `python -m pipeline.tasks.needs_engine WORD …` ends with 0 if one does.

doitw asks it before the machine is set up, for words that may do without: locks, roots and wheels made from packages.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from pipeline.config import loader
from pipeline.config.models import CombinedImage
from pipeline.core.errors import TandemError
from pipeline.graph.selection import select_tasks
from pipeline.tasks import project

WITHOUT = ("lock", "base", "wheels", "model")


def engine_wanted(root: Path, words: Iterable[str]) -> bool:
    """Whether any of these tasks, or what they need, is more than downloads and files. Raises ConfigError."""
    loaded = loader.load_config(root)
    graph = project.graph(loaded)
    for task in graph.order(select_tasks(graph, words)):
        kind, _, name = task.partition(":")
        if kind not in WITHOUT or isinstance(loaded.images.get(name), CombinedImage):
            return True
    return False


if __name__ == "__main__":
    try:
        sys.exit(0 if engine_wanted(Path.cwd(), sys.argv[1:]) else 1)
    except TandemError:
        sys.exit(1)  # doit says it
