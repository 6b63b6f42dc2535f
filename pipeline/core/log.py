"""Where a running task says what it does: one handle a task, so that parallel tasks never mix."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Log(Protocol):
    """A task's own output.

    A log may also have a method `step`, for lines that announce or end a piece of work: plain output shows only those.
    Every line goes to the task's log file; the newest line, step or progress is the task's live
    line in the terminal.
    """

    def line(self, text: str) -> None:
        """Write one line of output (no trailing newline)."""

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Show how far a piece of work is; `unit` is "B" for bytes, "s" for seconds, else a noun."""


class NullLog:
    """A log that keeps its lines in memory; for tests and for read-only commands."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        """Keep the line."""
        self.lines.append(text)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Forget it: progress is for people."""


def announce(log: Log, text: str) -> None:
    """Write a line that is shown where only the steps of a task are."""
    say: Callable[[str], None] = getattr(log, "step", log.line)
    say(text)


@contextmanager
def step(log: Log, title: str) -> Iterator[None]:
    """Announce a piece of work, and say how long it took, however it ends."""
    announce(log, f"{title} …")
    start = time.monotonic()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        announce(log, f"{title}: {outcome} in {time.monotonic() - start:.1f} s")
