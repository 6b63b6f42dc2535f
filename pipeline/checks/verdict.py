"""What a check says of an image."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

EMULATOR_SIGNALS = (4, 6, 11)
EMULATOR_WORDS = "uncaught target signal"


class Outcome(StrEnum):
    """How a check ended; only `ok` is a pass."""

    OK = "ok"
    FAILED = "failed"
    EMULATOR = "emulator"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check's result: what was found if it is ok, else each fault with its remedy."""

    check: str
    outcome: Outcome
    details: tuple[str, ...]


def judge(check: str, faults: Sequence[str], found: str) -> Verdict:
    """`failed` with the faults if there are any, else `ok` with what was found."""
    return Verdict(check, Outcome.FAILED, tuple(faults)) if faults else Verdict(check, Outcome.OK, (found,))


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
