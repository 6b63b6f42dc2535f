"""Finds the tasks that other runs hold at this moment, without waiting and without blocking them."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.core.locks import Holder, hold_if_free, read_holder
from pipeline.graph.graph import Graph
from pipeline.graph.keys import folder_name


def find_holder(graph: Graph, task: str) -> Holder | None:
    """Returns the process that runs the task now, or None."""
    return read_holder(lock_path(graph, task))


@contextmanager
def hold_free_tasks(graph: Graph, tasks: Iterable[str]) -> Iterator[dict[str, Holder]]:
    """Holds the locks of all tasks that no process runs, during the block; yields those that a process runs.

    Runs that begin meanwhile wait, and name this process. Raises HostError if the locks cannot be written.
    """
    busy: dict[str, Holder] = {}
    with ExitStack() as stack:
        for task in tasks:
            if not stack.enter_context(hold_if_free(lock_path(graph, task))):
                busy[task] = find_holder(graph, task) or Holder(pid=0, since=time.time())
        yield busy


def lock_path(graph: Graph, task: str) -> Path:
    """Returns the file of a task's lock."""
    return graph.artifacts / "locks" / f"{folder_name(task)}.lock"
