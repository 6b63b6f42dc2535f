"""The outcomes of tasks, and the exit code and report of the run."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from pipeline.core import redact
from pipeline.core.errors import Cancelled, Exit, TandemError
from pipeline.core.files import write_whole
from pipeline.graph.decide import Reason
from pipeline.graph.fingerprint import result_digest
from pipeline.graph.task import Json, Outputs

SCHEMA = 1
WORST_FIRST = (Exit.INTERRUPTED, Exit.BUG, Exit.CONFIG, Exit.HOST, Exit.BUSY, Exit.FAILED)


class End(StrEnum):
    """The way a task ended.

    A blocked task was not tried, because one that it needs failed. A lazy task is left for later if its product is
    gone and no task had to read it.
    """

    SKIPPED = "skipped"
    RESTORED = "restored"
    RAN = "ran"
    FAILED = "failed"
    BLOCKED = "blocked"
    LATER = "later"


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of one task."""

    task: str
    end: End
    seconds: float = 0.0
    fingerprint: str | None = None
    reasons: tuple[Reason, ...] = ()
    outputs: Outputs | None = None
    summary: str = ""
    """A few words on the result, for people."""
    error: BaseException | None = None
    traceback: str = ""
    """Set for a bug only."""
    log: Path | None = None
    """Set if the task did something."""
    tail: tuple[str, ...] = ()
    """The last lines of the log, before the error."""
    before: tuple["Outcome", ...] = ()
    """The outcomes of lazy tasks that had to be done for it."""

    @property
    def code(self) -> Exit:
        """Returns the exit code of a run of this task alone. A blocked task adds nothing to its cause."""
        if self.error is None:
            return Exit.OK
        return self.error.code if isinstance(self.error, TandemError) else Exit.BUG


def exit_code(outcomes: Iterable[Outcome], *, interrupted: bool) -> Exit:
    """Returns the first of 130, 2, 3, 4, 5, 1 that applies; 0 if none does."""
    codes = {outcome.code for outcome in outcomes} | ({Exit.INTERRUPTED} if interrupted else set())
    return next((code for code in WORST_FIRST if code in codes), Exit.OK)


def as_interruption(error: BaseException) -> BaseException:
    """Returns the error to report if one came up while the run was being stopped: the interruption."""
    return error if isinstance(error, Cancelled) else Cancelled("interrupted")


def write_report(
    file: Path, outcomes: Iterable[Outcome], *, code: Exit, started: float, seconds: float, command: Iterable[str]
) -> None:
    """Write `report.json`: schema, the run's times (seconds; UTC), exit code, and every task. Raises HostError."""
    report: Json = {
        "schema": SCHEMA,
        "command": list(command),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="milliseconds"),
        "seconds": round(seconds, 3),
        "exit": int(code),
        "tasks": [_entry(outcome) for outcome in outcomes],
    }
    write_whole(file, json.dumps(redact.clean_json(report), indent=1) + "\n", sync=False)


def _entry(outcome: Outcome) -> Json:
    error = outcome.error
    return {
        "task": outcome.task,
        "outcome": str(outcome.end),
        "reasons": [{"input": reason.input, "old": reason.old, "new": reason.new} for reason in outcome.reasons],
        "seconds": round(outcome.seconds, 3),
        "fingerprint": outcome.fingerprint,
        "digest": None if outcome.outputs is None else result_digest(outcome.outputs),
        "outputs": outcome.outputs,
        "error": None
        if error is None
        else {
            "code": int(outcome.code),
            "message": str(error),
            "hint": error.hint if isinstance(error, TandemError) else "",
        },
        "log": str(outcome.log) if outcome.log else None,
    }
