"""A wait ends when the thing is ready, when its time is over, or when the run is interrupted."""

from collections.abc import Callable, Iterator

import pytest

from pipeline.core import procs
from pipeline.core.errors import Cancelled
from pipeline.core.log import NullLog
from pipeline.core.waiting import wait_until


class Clock:
    """A clock that only sleep() moves on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class ProgressLog(NullLog):
    """Keeps what progress lines say."""

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        self.lines.append(f"{title} {done:g}/{total} {unit}")


@pytest.fixture
def interrupted() -> Iterator[None]:
    procs.cancel()
    yield
    procs.resume()


def after(clock: Clock, seconds: float) -> Callable[[], bool]:
    return lambda: clock.seconds >= seconds


def test_a_wait_ends_once_the_thing_is_ready_and_shows_progress_until_then() -> None:
    clock, log = Clock(), ProgressLog()
    assert wait_until(
        after(clock, 2), timeout_s=9, log=log, title=lambda: f"at {clock.seconds:g}", usual_s=3.0,
        now=clock.now, sleep=clock.sleep,
    )  # fmt: skip
    assert log.lines == ["at 0 0/3.0 s", "at 1 1/3.0 s"]


def test_a_wait_that_takes_too_long_returns_false() -> None:
    clock = Clock()
    assert not wait_until(after(clock, 99), timeout_s=5, interval_s=0.5, now=clock.now, sleep=clock.sleep)
    assert clock.seconds == 5


def test_what_is_ready_needs_no_time_at_all() -> None:
    assert wait_until(lambda: True, timeout_s=0)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_wait_raises_cancelled() -> None:
    with pytest.raises(Cancelled):
        wait_until(lambda: False, timeout_s=60)


@pytest.mark.usefixtures("interrupted")
def test_a_wait_that_tidies_up_goes_on_after_an_interrupt() -> None:
    clock = Clock()
    assert wait_until(after(clock, 3), timeout_s=9, tidying=True, now=clock.now, sleep=clock.sleep)
