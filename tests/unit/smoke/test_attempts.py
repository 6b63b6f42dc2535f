"""How often something is tried again, and what its verdict is."""

from collections.abc import Callable

from pipeline.core.attempt_error import AttemptError
from pipeline.core.log import NullLog
from pipeline.smoke.attempts import judge_attempts, try_repeatedly
from pipeline.smoke.verdict import CheckOutcome


def failing(*errors: AttemptError) -> Callable[[], str]:
    """Returns an attempt that raises these errors one after the other, and then succeeds."""
    left = list(errors)

    def attempt() -> str:
        if left:
            raise left.pop(0)
        return "2 nodes"

    return attempt


SLOW = AttemptError("too slow", again=True)
CRASH = AttemptError("`ray status`", crashed=True)
FAULT = AttemptError("no ray")


def test_a_failure_that_may_pass_is_tried_again() -> None:
    log = NullLog()
    answer = try_repeatedly("ray", failing(SLOW, CRASH), log)
    assert log.lines == ["ray: too slow (attempt 1 of 3)", "ray: `ray status` (attempt 2 of 3)"]
    assert judge_attempts("ray", answer).details == ("2 nodes",)


def test_any_other_failure_is_the_verdict_at_once() -> None:
    answer = try_repeatedly("ray", failing(FAULT), NullLog())
    assert judge_attempts("ray", answer).details == ("no ray",)


def test_the_last_of_three_failures_decides_the_outcome() -> None:
    slow = judge_attempts("ray", try_repeatedly("ray", failing(CRASH, CRASH, SLOW), NullLog()))
    assert (slow.outcome, slow.details) == (CheckOutcome.FAILED, ("too slow",))
    crashed = judge_attempts("ray", try_repeatedly("ray", failing(SLOW, SLOW, CRASH), NullLog()))
    assert crashed.outcome is CheckOutcome.EMULATOR
    assert "crashed 3 times at `ray status`" in crashed.details[0]
