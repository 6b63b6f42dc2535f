"""From the verdicts of all checks to a table, a report, and the proof that an image passed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import TandemError
from pipeline.core.log import Log
from pipeline.core.tables import format_boxes
from pipeline.smoke.verdict import CheckOutcome, Verdict

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Smoked:
    """The proof that an image passed every check that its image.yaml asks for."""

    reference: str
    report: Json


class SmokeError(TandemError):
    """At least one check did not pass; `report` has the verdicts of all."""

    def __init__(self, message: str, report: Json, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.report = report


def conclude(task: str, subject: Mapping[str, Any], verdicts: Sequence[Verdict], log: Log) -> Smoked:
    """Prints the table of the verdicts, and returns the proof; raises SmokeError if a check did not pass.

    `task` begins the error's message. `subject` is the part of the report that says what was checked; it has the key
    `reference`. No report has a time in it, so that two runs on one image report the same.
    """
    report = {**subject, "checks": {verdict.check: verdict.as_json() for verdict in verdicts}}
    for line in render_table(verdicts):
        log.step(line)
    bad = [verdict for verdict in verdicts if verdict.outcome is not CheckOutcome.OK]
    if bad:
        crashed = all(verdict.outcome is CheckOutcome.EMULATOR for verdict in bad)
        hint = "the emulator crashed, which says nothing about the image: run it again" if crashed else ""
        raise SmokeError(_message(task, bad, len(verdicts)), report, hint=hint)
    return Smoked(str(subject["reference"]), report)


def _message(task: str, bad: Sequence[Verdict], count: int) -> str:
    names = ", ".join(verdict.check for verdict in bad)
    lines = [f"  {verdict.check} ({verdict.outcome.value}): {detail}" for verdict in bad for detail in verdict.details]
    return f"{task}: {len(bad)} of {count} checks did not pass: {names}\n" + "\n".join(lines)


def render_table(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns the lines of a table with one row for each verdict."""
    rows = [(verdict.check, verdict.outcome.value, "\n".join(verdict.details)) for verdict in verdicts]
    return format_boxes(("check", "outcome", "what was found"), rows)
