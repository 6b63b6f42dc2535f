"""Which tasks another run holds at this moment: seen without waiting, and without standing in anybody's way."""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.locks import sign, take
from pipeline.graph.graph import Graph
from pipeline.graph.keys import folder_name


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who runs a task: its process, and since when (seconds since 1970)."""

    pid: int
    since: float


def holder(graph: Graph, task: str) -> Holder | None:
    """Who runs the task now, or None.

    A lock's file is empty unless it is held, or its holder was killed. Only then is the lock itself tried, for the
    moment of one system call.
    """
    path = lock_path(graph, task)
    try:
        pid, since = path.read_text().split()
        found = Holder(pid=int(pid), since=float(since))
    except (OSError, ValueError):
        return None
    return found if _held(path) else None


@contextmanager
def hold_free(graph: Graph, tasks: Iterable[str]) -> Iterator[dict[str, Holder]]:
    """Hold the locks of all tasks that nobody runs, while the block runs; yields those that somebody does run.

    Runs that begin meanwhile wait, and name this process. Raises HostError if the locks cannot be written.
    """
    busy: dict[str, Holder] = {}
    with ExitStack() as stack:
        for task in tasks:
            if not stack.enter_context(_held_by_us(lock_path(graph, task))):
                busy[task] = holder(graph, task) or Holder(pid=0, since=time.time())
        yield busy


def lock_path(graph: Graph, task: str) -> Path:
    """Where the runner keeps a task's lock."""
    return graph.artifacts / "locks" / f"{folder_name(task)}.lock"


@contextmanager
def _held_by_us(path: Path) -> Iterator[bool]:
    try:
        handle = take(path, wait=False)
    except BlockingIOError:
        yield False
        return
    try:
        sign(handle)
        yield True
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _held(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
