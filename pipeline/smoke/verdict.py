"""What a check says of an image."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

EMULATOR_SIGNALS = (signal.SIGILL, signal.SIGABRT, signal.SIGSEGV)
EMULATOR_WORDS = "uncaught target signal"


class Outcome(StrEnum):
    """How a check ended; only `ok` is a pass."""

    OK = "ok"
    FAILED = "failed"
    EMULATOR = "emulator"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check's result: what was found if it is ok, else each fault with its remedy; `parts` are its own, if any."""

    check: str
    outcome: Outcome
    details: tuple[str, ...]
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What a report holds of it."""
        parts = {"points": {part: list(faults) for part, faults in self.parts.items()}} if self.parts else {}
        return {"outcome": self.outcome.value, "details": list(self.details), **parts}


def judge(check: str, faults: Sequence[str], found: str, parts: Mapping[str, Sequence[str]] | None = None) -> Verdict:
    """`failed` with the faults if there are any, else `ok` with what was found."""
    return Verdict(check, Outcome.FAILED if faults else Outcome.OK, tuple(faults) or (found,), parts or {})


def emulator_crashed(status: int | None, text: str, *, emulated: bool) -> bool:
    """Whether an output, or where an emulator runs an exit status (128 + signal), shows that the emulator crashed."""
    return emulator_speaks(text) or (emulated and status is not None and status - 128 in EMULATOR_SIGNALS)


def emulator_speaks(text: str) -> bool:
    """Whether the emulator's own words about its crash are in an output: proof wherever it comes from."""
    return EMULATOR_WORDS in text


def ending(status: int | None) -> str:
    """How a command ended, in words: `exit status 7`, or for 128 + signal as in `signal 11 (SIGSEGV)`."""
    if status is None:
        return "its time up"
    number = status - 128
    if number not in {*signal.Signals}:
        return f"exit status {status}"
    return f"signal {number} ({signal.Signals(number).name})"


def crash_verdict(check: str, what: str, attempts: int) -> Verdict:
    """The verdict where the emulator, not the image, has failed every time."""
    detail = (
        f"the emulator crashed {attempts} times at {what}: this says nothing about the image;"
        " try again, or smoke it on a machine of its platform"
    )
    return Verdict(check, Outcome.EMULATOR, (detail,))
