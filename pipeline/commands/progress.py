"""How a command that takes a while says what it does."""

import sys
import time

from pipeline.graph.run.output import progress_text

PROGRESS_INTERVAL_S = 5  # seconds between two words of progress, where there is no terminal


class Shown:
    """A log for people: lines on stderr, and below them, in a terminal, how far it is."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = time.monotonic()
        self._drawn = False

    def line(self, text: str) -> None:
        """Print the line."""
        self.close()
        print(text, file=sys.stderr, flush=True)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Draw it anew in a terminal; elsewhere say it from time to time."""
        said = progress_text(title, done, total, unit)
        if self._live:
            sys.stderr.write(f"\r\x1b[K{said}")
            sys.stderr.flush()
            self._drawn = True
        elif time.monotonic() - self._last > PROGRESS_INTERVAL_S:
            self._last = time.monotonic()
            self.line(said)

    def close(self) -> None:
        """Leave no half-drawn line."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
