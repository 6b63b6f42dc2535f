"""The state of tasks as commands show it: what each would do, who runs it, and how long it takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.core.locks import Holder
from pipeline.graph.decide import Decision, Reason, decide_all
from pipeline.graph.graph import Graph
from pipeline.graph.keys import canonical_json
from pipeline.graph.records import Record
from pipeline.graph.run.holders import find_holder
from pipeline.graph.run.runner import past_runs
from pipeline.graph.task import Json, Task

SCHEMA = 1
"""Of every `--json` (docs/commands.md); counts up when a key changes its meaning or goes."""


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """One task now. `finished` is in seconds since 1970, `seconds` the last duration, `usual` the median duration."""

    task: Task
    decision: Decision
    running: Holder | None
    finished: float | None
    seconds: float | None
    usual: float | None

    @property
    def state(self) -> str:
        """Returns a State, or "running"."""
        return "running" if self.running else str(self.decision.state)

    @property
    def digest(self) -> str | None:
        """Returns the identity of the newest result, up to date or not."""
        return self.newest.digest if self.newest else None

    @property
    def newest(self) -> Record | None:
        """Returns the result that is up to date, or else the one that was compared."""
        return self.decision.record or self.decision.compared


def survey_tasks(graph: Graph, names: Iterable[str] = ()) -> dict[str, TaskStatus]:
    """Returns these tasks (all, if none are named) and their upstream in the order of a run. Raises as decide_all()."""
    return {name: _seen(graph, decision) for name, decision in decide_all(graph, names).items()}


def _seen(graph: Graph, decision: Decision) -> TaskStatus:
    runs = [run for run in past_runs(graph, decision.task) if isinstance(run.get("seconds"), (int, float))]
    record = decision.record or decision.compared
    last = next((run for run in runs if record and run.get("fingerprint") == record.fingerprint), None)
    return TaskStatus(
        task=graph.tasks[decision.task],
        decision=decision,
        running=find_holder(graph, decision.task),
        finished=float(last.get("started", 0)) + float(last["seconds"]) if last else _written(graph, record),
        seconds=float(last["seconds"]) if last else None,
        usual=_median([float(run["seconds"]) for run in runs]),
    )


def _median(numbers: list[float]) -> float | None:
    # The module statistics takes longer to import than a look takes.
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2 if ordered else None


def _written(graph: Graph, record: Record | None) -> float | None:
    """Returns when a record was written whose run is not remembered."""
    try:
        return graph.records.path(record.task, record.fingerprint).stat().st_mtime if record else None
    except OSError:
        return None


def claim_states(status: TaskStatus) -> list[tuple[str, Json, str | None]]:
    """Returns the claims that were checked: kind, what, and why the claim does not hold (None: it holds).

    Claims of a result whose inputs have changed are not checked.
    """
    record = status.decision.compared
    if record is None or record.fingerprint != status.decision.fingerprint:
        return []
    broken = {(reason.input, reason.old): reason.new for reason in status.decision.reasons}
    return [
        (claim.kind, dict(claim.what), broken.get((f"world:{claim.kind}", canonical_json(dict(claim.what)))))
        for claim in status.task.world(record.outputs)
    ]


def reasons_json(reasons: Iterable[Reason]) -> Json:
    """Returns the reasons of a decision for `--json`."""
    return [{"input": reason.input, "old": reason.old, "new": reason.new} for reason in reasons]


def running_json(holder: Holder | None) -> Json:
    """Returns the process that runs a task for `--json`."""
    return None if holder is None else {"pid": holder.pid, "since": iso_time(holder.since)}


def iso_time(seconds: float | None) -> str | None:
    """Returns a time in UTC as ISO 8601, to the second."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
