"""Tasks of dodo.py that are doit's own, not the graph's: run as doit would, reported as ours."""

import time
from collections.abc import Mapping
from typing import Any

from doit.dependency import Dependency
from doit.exceptions import BaseFail, TaskFailed
from doit.task import Stream
from msgspec.structs import replace

from pipeline.core.errors import TandemError
from pipeline.graph.run.no_db import NoDB
from pipeline.graph.run.outcome import End, Outcome
from pipeline.graph.run.output import Screen


def attempt(task: Any, tasks: Mapping[str, Any], shown: Screen, *, always: bool) -> Outcome:
    """Run a task of doit's, unless its own `uptodate` says that it need not; nothing about it is kept."""
    start = time.monotonic()
    try:
        outcome = _attempt(task, tasks, shown, always=always)
    except BaseException as error:
        outcome = Outcome(task=task.name, end=End.FAILED, error=error, traceback=repr(error))
    outcome = replace(outcome, seconds=time.monotonic() - start)
    shown.end(outcome)
    return outcome


def _attempt(task: Any, tasks: Mapping[str, Any], shown: Screen, *, always: bool) -> Outcome:
    status = Dependency(NoDB, "").get_status(task, tasks).status
    if status == "up-to-date" and not always:
        return Outcome(task=task.name, end=End.SKIPPED)
    shown.start(task.name)
    task.init_options()
    failure: BaseFail | None = task.execute(Stream(2))
    if failure is None:
        return Outcome(task=task.name, end=End.RAN)
    text = "".join(failure.traceback)
    error: Exception = (
        TandemError(failure.message) if isinstance(failure, TaskFailed) else RuntimeError(failure.message)
    )
    return Outcome(
        task=task.name, end=End.FAILED, error=error, traceback="" if isinstance(error, TandemError) else text
    )
