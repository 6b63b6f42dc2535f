"""The result of one check, and how it tells a fault of the image from a crash of the emulator."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

CRASH_SIGNALS = (signal.SIGILL, signal.SIGABRT, signal.SIGSEGV)
CRASH_WORDS = "uncaught target signal"


class CheckOutcome(StrEnum):
    """How a check ended; only `ok` is a pass."""

    OK = "ok"
    FAILED = "failed"
    EMULATOR = "emulator"
    """The emulator crashed, so that nothing is known about the image."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one check."""

    check: str
    """The name of the check."""
    outcome: CheckOutcome
    details: tuple[str, ...]
    """One line that sums up a pass, or one line for each fault, with its remedy."""
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The faults by part of the check, for a check that has parts."""

    def as_json(self) -> dict[str, Any]:
        """Returns the verdict as a report holds it."""
        parts = {"points": {part: list(faults) for part, faults in self.parts.items()}} if self.parts else {}
        return {"outcome": self.outcome.value, "details": list(self.details), **parts}


def verdict_of(
    check: str, faults: Sequence[str], summary: str, parts: Mapping[str, Sequence[str]] | None = None
) -> Verdict:
    """Returns `failed` with the faults if there are any, else `ok` with the summary."""
    outcome = CheckOutcome.FAILED if faults else CheckOutcome.OK
    return Verdict(check, outcome, tuple(faults) or (summary,), parts or {})


def crash_verdict(check: str, step: str, attempts: int) -> Verdict:
    """Returns the verdict for an emulator that crashed at this step in every attempt."""
    detail = (
        f"the emulator crashed {attempts} times at {step}: this says nothing about the image;"
        " try again, or smoke it on a machine of its platform"
    )
    return Verdict(check, CheckOutcome.EMULATOR, (detail,))


def emulator_crashed(status: int | None, output: str, *, emulated: bool) -> bool:
    """Tells whether the emulator crashed, by a command's output and, if `emulated`, by its exit status (128 + signal).

    Without an emulator a signal is the command's own.
    """
    return reports_crash(output) or (emulated and status is not None and status - 128 in CRASH_SIGNALS)


def reports_crash(output: str) -> bool:
    """Tells whether an output holds the emulator's own words about its crash."""
    return CRASH_WORDS in output


def describe_exit(status: int | None) -> str:
    """Returns `exit status 7`, or `signal 11 (SIGSEGV)` for a status of 128 + signal; None means a time-out."""
    if status is None:
        return "a time-out"
    number = status - 128
    if number not in {*signal.Signals}:
        return f"exit status {status}"
    return f"signal {number} ({signal.Signals(number).name})"


def last_lines(output: str) -> str:
    """Returns the last three lines of an output in one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-500:] or "no output"
