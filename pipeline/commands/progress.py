"""The log of a command that takes a while."""

import sys
import time

from pipeline.core.log import progress_text

PROGRESS_INTERVAL_S = 5
"""Without a terminal, progress is printed this often."""


class TerminalLog:
    """Prints lines on stderr and, below them in a terminal, how far the work is; with `steps_only` no details."""

    def __init__(self, *, steps_only: bool = False) -> None:
        self._steps_only = steps_only
        self._live = sys.stderr.isatty()
        self._last = time.monotonic()
        self._drawn = False

    def line(self, text: str) -> None:
        """Print the line, unless only steps are wanted."""
        if not self._steps_only:
            self.step(text)

    def step(self, text: str) -> None:
        """Print the line."""
        self.close()
        print(text, file=sys.stderr, flush=True)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Redraw the progress in a terminal; print it from time to time elsewhere."""
        text = progress_text(title, done, total, unit)
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._drawn = True
        elif time.monotonic() - self._last > PROGRESS_INTERVAL_S:
            self._last = time.monotonic()
            self.step(text)

    def close(self) -> None:
        """Leave no half-drawn line."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
