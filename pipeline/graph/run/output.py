"""The output of a run: each task's whole output in a file of its own, and one stream of lines for people."""

import os
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, TextIO

from pipeline.core import redact
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.files import replace_link, write_failure
from pipeline.core.log import progress_text
from pipeline.core.procs import cancelled
from pipeline.graph.run.outcome import End, Outcome

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f]")
HEARTBEAT_CHARACTERS = 160  # characters of a sign of life; the log has the whole line
HEARTBEAT_S = 30.0
TAIL_LINES = 15
LATEST = "latest"
LOG_NAME_FORMAT = "%Y%m%dT%H%M%S.%f"
LOUD, NORMAL, QUIET = 2, 1, 0


class Screen(Protocol):
    """The place where a run shows its tasks. Its methods are called from several threads."""

    def start(self, task: str) -> None:
        """A task begins to do something."""

    def line(self, task: str, text: str, *, step: bool) -> None:
        """A task wrote a line; a step announces or ends a piece of work."""

    def progress(self, task: str, text: str) -> None:
        """A task's work has come that far."""

    def end(self, outcome: Outcome) -> None:
        """A task ended."""

    def note(self, text: str) -> None:
        """Show a text that does not belong to a task."""

    def close(self) -> None:
        """The run has ended."""


class TaskLog:
    """A task's log handle: every line in the file, the newest on the screen. Safe to use from several threads."""

    def __init__(self, task: str, folder: Path, screen: Screen) -> None:
        self.path = folder / f"{_next(folder / LATEST)}.log"
        self._task = task
        self._screen = screen
        self._lock = threading.Lock()
        self._told = False
        self._full = False
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("x", encoding="utf-8", errors="backslashreplace", buffering=1)
        except OSError as error:
            raise write_failure(self.path, error) from error

    def is_latest(self) -> None:
        """Make this the task's latest log. A run that still waits for another one has not done anything yet."""
        replace_link(self.path.with_name(LATEST), self.path.name)

    def line(self, text: str) -> None:
        """Write a line."""
        self._write(text, step=False)

    def step(self, text: str) -> None:
        """Write a line that announces or ends a piece of work. Plain output shows steps only."""
        self._write(text, step=True)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Show how far a piece of work is. Raises Cancelled, once, after the run was interrupted."""
        if cancelled() and not self._told:
            # Once: what a task does then is clean up, and that may wait for something too.
            self._told = True
            raise Cancelled("interrupted")
        self._screen.progress(self._task, redact.clean(progress_text(title, done, total, unit)))

    def close(self) -> None:
        """Close the file."""
        with self._lock, suppress(OSError):
            self._file.close()

    def _put(self, text: str) -> None:
        try:
            self._file.write(text + "\n")
        except OSError as error:
            # Once: what a task does then is clean up, and that has something to say too.
            self._full = True
            raise write_failure(self.path, error) from error

    def _write(self, text: str, *, step: bool) -> None:
        text = redact.clean(text)
        with self._lock:
            self.tail.extend(text.splitlines())
            if not self._full:
                self._put(text)
        for part in text.splitlines() or [""]:
            self._screen.line(self._task, without_escapes(part), step=step)


def _next(latest: Path) -> str:
    """Returns a name that sorts after the newest log's, whatever the clock and the time zone were then."""
    name = f"{datetime.now(UTC):{LOG_NAME_FORMAT}}"
    with suppress(OSError, ValueError):
        last = latest.readlink().stem
        if last >= name:
            newest = datetime.strptime(last, LOG_NAME_FORMAT).replace(tzinfo=UTC)
            return f"{newest + timedelta(microseconds=1):{LOG_NAME_FORMAT}}"
    return name


class TaskScreen(ABC):
    """The part that all screens share: the running tasks with their newest text, and how the end of one is told."""

    def __init__(self, verbosity: int) -> None:
        self._verbosity = verbosity
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, str]] = {}

    def progress(self, task: str, text: str) -> None:
        """Keep it as the task's newest."""
        with self._lock:
            if task in self._running:
                self._running[task] = (self._running[task][0], text)

    def end(self, outcome: Outcome) -> None:
        """Print how it ended."""
        with self._lock:
            self._running.pop(outcome.task, None)
        self._say(outcome_text(outcome), at_least=QUIET if outcome.error else NORMAL)

    def note(self, text: str) -> None:
        """Print it."""
        self._say(text, at_least=QUIET)

    @abstractmethod
    def _say(self, text: str, *, at_least: int) -> None:
        """Print a line if the verbosity is at least that."""


class PlainScreen(TaskScreen):
    """Prints lines, each with its task's name in front; at least one every half minute while a task runs."""

    def __init__(
        self,
        *,
        verbosity: int = NORMAL,
        out: TextIO | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(verbosity)
        self._out = out or sys.stdout
        self._every = heartbeat_s
        self._now = now
        self._closed = threading.Event()
        self._pulse: threading.Thread | None = None
        self._spoken = now()

    def start(self, task: str) -> None:
        """Say that it begins."""
        with self._lock:
            self._running[task] = (self._now(), "")
            if self._pulse is None:
                self._pulse = threading.Thread(target=self._beat, daemon=True)
                self._pulse.start()
        self._say(f"{task} | start", at_least=NORMAL)

    def line(self, task: str, text: str, *, step: bool) -> None:
        """Print steps; print everything if asked to be loud."""
        self.progress(task, text)
        self._say(f"{task} | {text}", at_least=NORMAL if step else LOUD)

    def close(self) -> None:
        """End the heartbeat."""
        self._closed.set()
        if self._pulse:
            self._pulse.join()

    def _say(self, text: str, *, at_least: int) -> None:
        if self._verbosity < at_least:
            return
        with self._lock:
            self._spoken = self._now()
            write_line(self._out, text)

    def _beat(self) -> None:
        while not self._closed.wait(min(1.0, self._every)):
            with self._lock:
                due = self._now() - self._spoken >= self._every
                running = dict(self._running)
            if due:
                for task, (since, text) in running.items():
                    shown = text if len(text) <= HEARTBEAT_CHARACTERS else text[: HEARTBEAT_CHARACTERS - 1] + "…"
                    self._say(f"{task} | {self._now() - since:.0f} s: {shown or 'works'}", at_least=QUIET)


def write_line(out: TextIO, text: str) -> None:
    """Writes a line at once. A closed stdout (`./doitw | head`) ends the output, not the run."""
    try:
        out.write(text + "\n")
        out.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def without_escapes(text: str) -> str:
    """Returns a program's line without colours and cursor movements, which would disturb our screen."""
    return ESCAPES.sub("", text).expandtabs(4)


def outcome_text(outcome: Outcome) -> str:
    """Returns the outcome for people: a line, or for a failure the message, the hint, the log and its last lines."""
    name = outcome.task
    match outcome.end:
        case End.SKIPPED:
            return f"{name} | up to date" + (f": {outcome.summary}" if outcome.summary else "")
        case End.LATER:
            return f"{name} | not needed"
        case End.BLOCKED:
            return f"{name} | not run: a task that it needs failed"
        case End.RESTORED | End.RAN:
            how = "restored" if outcome.end is End.RESTORED else "done"
            return f"{name} | {how} in {outcome.seconds:.1f} s"
        case End.FAILED:
            return "\n".join(f"{name} | {line}" for line in _failure(outcome))


def _failure(outcome: Outcome) -> list[str]:
    error = outcome.error
    lines = [f"FAILED after {outcome.seconds:.1f} s"]
    if outcome.tail and not isinstance(error, Cancelled) and outcome.tail[-1] not in str(error):
        # Why it ran was said when it began.
        lines += [f"  {without_escapes(line)}" for line in outcome.tail if not line.startswith("because ")]
    if outcome.traceback:
        lines += ["this is a bug:", *outcome.traceback.splitlines()]
    else:
        lines += str(error).splitlines()
    if isinstance(error, TandemError) and error.hint:
        lines.append(f"hint: {error.hint}")
    if outcome.log:
        lines.append(f"log: {outcome.log}")
    return lines
