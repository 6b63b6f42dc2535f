"""Tries something again where the emulator crashed, or where a new attempt may succeed."""

from collections.abc import Callable

from pipeline.core.attempt_error import AttemptError
from pipeline.core.log import Log
from pipeline.smoke.probe import ProbeAnswer
from pipeline.smoke.verdict import Verdict, crash_verdict, verdict_of

ATTEMPTS = 3


def try_repeatedly(name: str, attempt: Callable[[], str], log: Log) -> ProbeAnswer:
    """Calls `attempt` up to ATTEMPTS times, as long as its AttemptError allows that; the answer is what it returns."""
    answer = ProbeAnswer()
    for number in range(1, ATTEMPTS + 1):
        try:
            return ProbeAnswer(attempt())
        except AttemptError as error:
            log.line(f"{name}: {error} (attempt {number} of {ATTEMPTS})")
            answer = ProbeAnswer(error=str(error), crashed=error.crashed)
            if not error.again and not error.crashed:
                break
    return answer


def judge_attempts(check: str, answer: ProbeAnswer) -> Verdict:
    """Returns the verdict of a check that consists of the attempts with this answer."""
    if answer.crashed:
        return crash_verdict(check, answer.error, ATTEMPTS)
    return verdict_of(check, [answer.error] if answer.error else [], str(answer.value))
