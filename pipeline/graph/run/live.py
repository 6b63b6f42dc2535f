"""The screen of a terminal: one live line for each running task, finished ones above it. rich is imported late."""

import shutil
import sys
import time
from typing import TYPE_CHECKING

from pipeline.graph.run.output import LOUD, NORMAL, PlainScreen, Screen, TaskScreen, write_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_PER_SECOND = 8


def make_screen(*, verbosity: int = NORMAL) -> Screen:
    """Returns the right screen for this stdout."""
    return LiveScreen(verbosity=verbosity) if sys.stdout.isatty() else PlainScreen(verbosity=verbosity)


class LiveScreen(TaskScreen):
    """One line for each running task, redrawn in place; what has ended stays above."""

    def __init__(self, *, verbosity: int = NORMAL) -> None:
        super().__init__(verbosity)
        self._live: Live | None = None

    def start(self, task: str) -> None:
        """Give the task a line."""
        with self._lock:
            self._running[task] = (time.monotonic(), "")
            if self._live is None:
                self._live = self._open()

    def line(self, task: str, text: str, *, step: bool) -> None:  # noqa: ARG002  # all lines are alike here
        """Show it as the task's newest; keep it above if the screen is loud."""
        self.progress(task, text)
        self._say(f"{task} | {text}", at_least=LOUD)

    def close(self) -> None:
        """Leave the terminal as it was."""
        with self._lock:
            live, self._live = self._live, None
        if live:
            live.stop()

    def _open(self) -> "Live":
        # Only a run that does something needs it: it takes longer to import than a no-op takes.
        from rich.console import Console
        from rich.live import Live

        live = Live(
            console=Console(highlight=False, markup=False),
            get_renderable=self._draw,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        return live

    def _draw(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table.grid(padding=(0, 1))
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(20, shutil.get_terminal_size().columns - 40))
        for task, (since, text) in list(self._running.items()):
            frame = FRAMES[int(now * FRAMES_PER_SECOND) % len(FRAMES)]
            table.add_row(frame, Text(task), f"{now - since:.0f} s", Text(text))
        return table

    def _say(self, text: str, *, at_least: int) -> None:
        if self._verbosity < at_least:
            return
        with self._lock:
            live = self._live
        if live:
            live.console.print(text, soft_wrap=True)
        else:
            write_line(sys.stdout, text)
