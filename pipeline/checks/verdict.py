"""What a check says of an image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

EMULATOR_SIGNALS = (4, 6, 11)
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


def emulator_crashed(status: int | None, text: str) -> bool:
    """Whether an exit status (128 + signal, or minus signal) or an output shows that the emulator crashed."""
    signal = 0 if status is None else -status if status < 0 else status - 128
    return signal in EMULATOR_SIGNALS or EMULATOR_WORDS in text


def crash_verdict(check: str, what: str, attempts: int) -> Verdict:
    """The verdict where the emulator, not the image, has failed every time."""
    detail = (
        f"the emulator crashed {attempts} times at {what}: this says nothing about the image;"
        " try again, or smoke it on a machine of its platform"
    )
    return Verdict(check, Outcome.EMULATOR, (detail,))
