"""Second tries for what a registry may do better."""

from collections.abc import Callable

from pipeline.core import procs
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.log import Log

TRIES = 5
SHORTEST_PAUSE_S = 1
LONGEST_PAUSE_S = 30


class Transient(TandemError):
    """A failure that another try may not meet: a 5xx, a reset, an upload that the registry lost."""


def retry_transient(send: Callable[[], None], log: Log) -> None:
    """Calls `send` up to 5 times, 1 s to 30 s apart, as long as it raises Transient. Raises its error, Cancelled."""
    from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    def announce(state: RetryCallState) -> None:
        if procs.cancelled():
            raise Cancelled("interrupted")
        log.line(f"the push failed in a way that may pass; trying again: {state.outcome}")

    Retrying(
        retry=retry_if_exception_type(Transient),
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(min=SHORTEST_PAUSE_S, max=LONGEST_PAUSE_S),
        before_sleep=announce,
        reraise=True,
    )(send)
