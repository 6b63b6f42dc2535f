"""The log of a running task. Each task has its own, so the lines of parallel tasks never mix."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Log(Protocol):
    """The output of one task.

    Every line and step goes to the task's log file. The newest line, step or progress is the task's live line in a
    terminal; where there is none, only steps are shown.
    """

    def line(self, text: str) -> None:
        """Writes one line of output, without a newline at its end."""

    def step(self, text: str) -> None:
        """Writes a line that announces or ends a piece of work."""

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Shows how far a piece of work is. `unit` is "B" for bytes, "s" for seconds, or a plural noun."""


class NullLog:
    """A log that keeps its lines in memory, for tests and read-only commands."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        """Keeps the line."""
        self.lines.append(text)

    def step(self, text: str) -> None:
        """Keeps the line."""
        self.lines.append(text)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Does nothing: progress is for people."""


class ForwardingLog:
    """Passes everything on to another log, one call at a time, so that threads can share that log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        """Passes it on."""
        with self._lock:
            self._log.line(text)

    def step(self, text: str) -> None:
        """Passes it on."""
        with self._lock:
            self._log.step(text)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Passes it on."""
        with self._lock:
            self._log.progress(title, done, total, unit)


def progress_text(title: str, done: float, total: float | None, unit: str) -> str:
    """Returns `fetch torch 12.0/80.1 MB`; `waiting for the engine 12 s, usually 30 s`; `layer 3/8 files`."""
    if unit == "s":
        return f"{title} {done:.0f} s" + (f", usually {total:.0f} s" if total else "")
    scale, name = (1e6, "MB") if unit == "B" else (1.0, unit)
    digits = 1 if unit == "B" else 0
    whole = f"/{total / scale:.{digits}f}" if total else ""
    return f"{title} {done / scale:.{digits}f}{whole} {name}"


@contextmanager
def step(log: Log, title: str) -> Iterator[None]:
    """Announces a piece of work, and logs how long it took, however it ends."""
    log.step(f"{title} …")
    start = time.monotonic()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        log.step(f"{title}: {outcome} in {time.monotonic() - start:.1f} s")
