"""Starts tasks in threads, in the order of doit's dispatcher. A signal ends the run in good order."""

import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from pipeline.core.errors import Exit
from pipeline.core.interrupts import SIGNALS
from pipeline.core.procs import cancel, kill
from pipeline.graph.run.outcome import End, Outcome
from pipeline.graph.run.output import Screen
from pipeline.graph.run.runner import Runner

HOLD_ON = "hold on"
SIGNAL_CHECK_S = 0.5
"""A signal is handled within this time."""
SHOW_CURSOR = b"\x1b[?25h"
STATUS = {End.SKIPPED: "up-to-date", End.LATER: "up-to-date", End.FAILED: "failure", End.BLOCKED: "failure"}


class Schedule:
    """One run of selected tasks; afterwards `outcomes` has how each ended, `interrupted` whether a signal stopped it.

    At most `side_by_side` tasks run at a time. After a failure no more are begun, unless told to `go_on` with those
    that do not need what failed.
    """

    def __init__(self, runner: Runner, screen: Screen, *, side_by_side: int, go_on: bool) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.interrupted = False
        self._runner = runner
        self._screen = screen
        self._side_by_side = side_by_side
        self._go_on = go_on
        self._stop = False
        self._running = 0
        # A SimpleQueue may be written to by a signal handler, while the main thread waits at it.
        self._ended: queue.SimpleQueue[tuple[Any, Outcome] | None] = queue.SimpleQueue()

    def run(self, dispatcher: Any) -> None:
        """Run the tasks of doit's TaskDispatcher. Returns when no task runs any more, also after an error."""
        with self._signals():
            try:
                self._dispatch(dispatcher)
            except BaseException:
                cancel()
                raise
            finally:
                while self._running:
                    self._wait()

    def _dispatch(self, dispatcher: Any) -> None:
        ended = None
        while not self._stop:
            try:
                node = dispatcher.generator.send(ended)
            except StopIteration:
                return
            if node == HOLD_ON:
                ended = self._wait()
            elif not self._begin(node):
                ended = node
            else:
                ended = self._wait() if self._running >= self._side_by_side else None

    def _begin(self, node: Any) -> bool:
        """Starts a task in a thread of its own; returns False if there is nothing to start."""
        task = node.task
        if node.bad_deps:
            node.run_status = "failure"
            if task.actions:
                self._end(node, Outcome(task=task.name, end=End.BLOCKED))
                self._screen.end(self.outcomes[task.name])
            return False
        if not task.actions:
            node.run_status = "successful"
            return False
        node.run_status = "run"
        # A daemon: a second signal must be able to leave without it.
        threading.Thread(target=self._work, args=(node,), name=task.name, daemon=True).start()
        self._running += 1  # not before: what never began is not waited for
        return True

    def _work(self, node: Any) -> None:
        self._ended.put((node, self._runner.attempt(node.task.name)))

    def _wait(self) -> Any:
        """Returns the next task that ends, or None if a signal came instead."""
        item = self._next()
        if item is None:
            cancel()
            return None
        self._running -= 1
        node, outcome = item
        self._end(node, outcome)
        return node

    def _next(self) -> tuple[Any, Outcome] | None:
        # Not in one wait: a signal that comes when Python has looked for one last, and does not wait yet, ends no wait.
        while True:
            with suppress(queue.Empty):
                return self._ended.get(timeout=SIGNAL_CHECK_S)

    def _end(self, node: Any, outcome: Outcome) -> None:
        for ended in (*outcome.before, outcome):
            self.outcomes[ended.task] = ended
            if ended.error and not self._go_on:
                self._stop = True
        node.run_status = STATUS.get(outcome.end, "successful")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # Who starts us in the background or under nohup has some signals ignored, and means it.
        before = {number: signal.getsignal(number) for number in SIGNALS}
        mine = [number for number in SIGNALS if before[number] != signal.SIG_IGN]
        for number in mine:
            signal.signal(number, self._interrupt)
        try:
            yield
        finally:
            for number in mine:
                signal.signal(number, before[number])

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.interrupted:
            # The second time: leave at once. What is on the disk is whole at any moment.
            kill()
            if os.isatty(1):
                os.write(1, SHOW_CURSOR)
            os._exit(Exit.INTERRUPTED)
        self.interrupted = self._stop = True
        self._ended.put(None)
