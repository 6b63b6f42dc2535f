"""Runs a task: holds its lock, decides again, runs it, checks that nothing changed meanwhile, records the result."""

import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pipeline.core import redact
from pipeline.core.errors import TandemError
from pipeline.core.files import as_disk_failure, write_failure, write_whole
from pipeline.core.locks import hold_lock
from pipeline.core.log import Log
from pipeline.core.procs import cancelled
from pipeline.graph import sharing
from pipeline.graph.decide import Decision, State, broken_claims, decide, decide_all, prefetch_claims
from pipeline.graph.graph import Graph
from pipeline.graph.keys import folder_name
from pipeline.graph.records import Record
from pipeline.graph.run.guards import check_code_unchanged, check_inputs_unchanged, check_upstream_intact, read_code
from pipeline.graph.run.outcome import End, Outcome, as_interruption
from pipeline.graph.run.output import Screen, TaskLog
from pipeline.graph.task import MALFORMED, Outputs, Run, Task
from pipeline.graph.world import NEVER

MAX_PAST_RUNS = 10
MAX_REASONS_SHOWN = 3
AS_IT_IS = {State.SKIP: End.SKIPPED, State.LATER: End.LATER}


@dataclass(kw_only=True)
class Attempt:
    """The parameters and the state of one attempt to bring a task up to date."""

    asked: bool
    """The task is wanted now, even if it is lazy."""
    always: bool
    """The work is done again, even if there is a result."""
    results: Mapping[str, Outputs] = field(default_factory=dict)
    """The results of its upstream."""
    before: list[Outcome] = field(default_factory=list)
    """The outcomes of lazy tasks that had to be done for it."""
    sure: Callable[[], None] = lambda: None
    """Makes sure of the task's lock; see hold_lock()."""


@dataclass
class _UnderWay:
    """A lazy task that this run brings up to date for all tasks that need it."""

    ended: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None


class Runner:
    """Brings tasks up to date, one call a task; safe to call from several threads for different tasks.

    `asked` are the tasks that the run was asked for by name; `always` does the work again even if a result is there.
    Up to `side_by_side` lazy tasks that one task needs are made at a time.
    """

    def __init__(
        self, graph: Graph, screen: Screen, *, asked: Collection[str], always: bool = False, side_by_side: int = 1
    ) -> None:
        self.graph = graph
        self._screen = screen
        self._asked = asked
        self._always = always
        self._side_by_side = side_by_side
        self._under_way: dict[str, _UnderWay] = {}
        self._guard = threading.Lock()
        graph.records.may_change = True
        names = graph.order(name for name in asked if name in graph.tasks) if asked else []
        prefetch_claims(graph, names)
        # Before any is edited: this process has some of these modules in memory, and runs them as they are now.
        self._code = read_code(graph, names)

    def attempt(self, name: str) -> Outcome:
        """Skip, restore or run a task whose upstream is done. Whatever goes wrong is in the outcome."""
        return self._bring(name, Attempt(asked=name in self._asked, always=self._always))

    def _bring(self, name: str, attempt: Attempt) -> Outcome:
        start = time.monotonic()
        try:
            outcome = self._attempt(self.graph.tasks[name], attempt)
        except BaseException as error:
            outcome = _failed(name, error, None)
        outcome = replace(outcome, seconds=time.monotonic() - start, before=tuple(attempt.before))
        if outcome.outputs is not None:
            self.graph.results[name] = outcome.outputs
        self._screen.end(outcome)
        return outcome

    def _attempt(self, task: Task, attempt: Attempt) -> Outcome:
        attempt.results = self._upstream(task)
        decision = decide(self.graph, task, attempt.results, asked=attempt.asked)
        if not attempt.always and (outcome_as_is := self._as_it_is(decision)):
            return outcome_as_is
        self.graph.world.discard_prefetched()
        log = TaskLog(task.name, self.graph.artifacts / "logs" / folder_name(task.name), self._screen)
        self._screen.start(task.name)
        try:
            with hold_lock(self._lock(task), what=task.name, log=log) as attempt.sure:
                outcome = self._work(task, attempt, log)
        except BaseException as error:
            outcome = _failed(task.name, error, log)
        finally:
            log.close()
        # Now, not at the end of the run: what was hashed is not hashed again, even after a kill.
        self.graph.cache.save()
        return replace(outcome, log=log.path)

    def _work(self, task: Task, attempt: Attempt, log: TaskLog) -> Outcome:
        # Again, now that no other run can be at this task: it may have been done, and code edited, while we waited.
        self.graph.code.forget()
        decision = decide(self.graph, task, attempt.results, asked=attempt.asked)
        for reason in decision.reasons[:MAX_REASONS_SHOWN]:
            log.step(f"because {reason.text}")
        for reason in decision.reasons[MAX_REASONS_SHOWN:]:
            log.line(f"because {reason.text}")
        if not attempt.always and (outcome_as_is := self._as_it_is(decision)):
            return outcome_as_is
        log.is_latest()
        if not attempt.always:
            if sharing.adopt_shared(self.graph.share, self.graph.records, task, decision.fingerprint, log):
                return self._work(task, attempt, log)
            restorable = decision.state is State.RESTORE and decision.record
            if restorable and self._restored(task, decision, restorable, attempt.results, log):
                return self._outcome(decision, End.RESTORED, restorable)
        results = self._complete(task, attempt)
        if results is None:
            return Outcome(task=task.name, end=End.BLOCKED, fingerprint=decision.fingerprint, reasons=decision.reasons)
        if results != attempt.results:
            log.line("what it needs came out differently when it was made again")
            attempt.results = results
            return self._work(task, attempt, log)
        record = self._run(task, decision, attempt, log)
        return self._outcome(decision, End.RAN, record)

    def _complete(self, task: Task, attempt: Attempt) -> dict[str, Outputs] | None:
        """Makes what a run reads of its lazy tasks; returns the results of all upstream, or None if one failed."""
        results = dict(attempt.results)
        lazy = [name for name in task.needs if self.graph.tasks[name].lazy]
        gone = [name for name in lazy if broken_claims(self.graph, self.graph.tasks[name], results[name])]
        outcomes = self._all(gone)
        # All of them, also beside one that failed: what was done is reported.
        attempt.before += [
            one for outcome in outcomes if outcome.end is not End.SKIPPED for one in (*outcome.before, outcome)
        ]
        for outcome in outcomes:
            if outcome.outputs is None:
                return None
            results[outcome.task] = outcome.outputs
        return results

    def _all(self, names: list[str]) -> list[Outcome]:
        """Brings tasks up to date that one task waits for. One by one, a failure is the last."""
        if min(len(names), self._side_by_side) > 1:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(self._side_by_side) as pool:
                return list(pool.map(self._bring_once, names))
        outcomes: list[Outcome] = []
        for name in names:
            outcomes.append(self._bring_once(name))
            if outcomes[-1].outputs is None:
                break
        return outcomes

    def _bring_once(self, name: str) -> Outcome:
        """Brings a lazy task up to date. Other tasks that need it wait here, not at its lock as for another run.

        A task that failed is not tried again in this run.
        """
        with self._guard:
            first = name not in self._under_way
            under_way = self._under_way.setdefault(name, _UnderWay())
        if not first:
            under_way.ended.wait()
            assert under_way.outcome
            ended = under_way.outcome
            # Done by this run, and reported by who began it.
            return ended if ended.outputs is None else replace(ended, end=End.SKIPPED, before=())
        try:
            under_way.outcome = self._bring(name, Attempt(asked=True, always=False))
            return under_way.outcome
        finally:
            if under_way.outcome and under_way.outcome.outputs is not None:
                with self._guard:
                    del self._under_way[name]
            under_way.ended.set()

    def _restored(
        self, task: Task, decision: Decision, record: Record, results: Mapping[str, Outputs], log: Log
    ) -> bool:
        """Returns whether an earlier result could be restored. If not, the work is done again."""
        assert task.restore is not None
        try:
            with self._scratch(task) as scratch:
                task.restore(_handed(decision, results, scratch, log), record.outputs)
        except TandemError as error:
            if cancelled():
                raise
            log.line(f"cannot be restored, so it is made again: {error}")
            return False
        if broken := broken_claims(self.graph, task, record.outputs):
            log.line(f"restored, but {broken[0].new}; so it is made again")
            return False
        self.graph.records.set_latest(record)
        return True

    def _run(self, task: Task, decision: Decision, attempt: Attempt, log: Log) -> Record:
        assert decision.fingerprint is not None
        results = attempt.results
        check_code_unchanged(task, decision, self._code)
        check_upstream_intact(self.graph, task, results)
        started, start = time.time(), time.monotonic()
        with self._scratch(task) as scratch, _removals_told(task, scratch, attempt):
            outputs = task.run(_handed(decision, results, scratch, log))
        # What the task has hard-linked (a build context does) has new stats now, and is still in memory.
        check_upstream_intact(self.graph, task, results)
        check_inputs_unchanged(self.graph, task, decision)
        record = Record(
            task=task.name, fingerprint=decision.fingerprint, inputs=decision.inputs, outputs=_plain(task, outputs)
        )
        broken = [r for r in broken_claims(self.graph, task, record.outputs) if r.input != f"world:{NEVER}"]
        if broken:
            raise TandemError(f"{task.name} has ended, but {broken[0].new}", hint="something else changed it meanwhile")
        attempt.sure()
        self.graph.records.write(record)
        sharing.publish(self.graph.share, task, record, log)
        self._remember_time(task, record, started, time.monotonic() - start)
        return record

    def _as_it_is(self, decision: Decision) -> Outcome | None:
        """Returns the outcome of a task that need not run, or None."""
        record = decision.record
        if record is None or decision.state not in AS_IT_IS:
            return None
        latest = self.graph.records.latest(record.task)
        if latest is None or latest.fingerprint != record.fingerprint:
            self.graph.records.set_latest(record)
        return self._outcome(decision, AS_IT_IS[decision.state], record)

    def _upstream(self, task: Task) -> dict[str, Outputs]:
        """Returns the results of the tasks that it needs: of this run, or (`--single`) of the last one."""
        results: dict[str, Outputs] = {}
        for name in task.needs:
            known = self.graph.results.get(name)
            if known is None:
                # By the task that needs it: it was not asked for itself.
                known = decide_all(self.graph, [task.name])[name].outputs
            if known is None and (latest := self.graph.records.latest(name)):
                known = latest.outputs
            if known is None:
                raise TandemError(f"{task.name} needs {name}, which has no result yet", hint=f"run {name} first")
            results[name] = known
        return results

    def _outcome(self, decision: Decision, end: End, record: Record) -> Outcome:
        summarise, summary = self.graph.tasks[decision.task].summary, ""
        # Another version may have recorded other outputs.
        with suppress(*MALFORMED):
            summary = summarise(record.outputs) if summarise else ""
        return Outcome(
            task=decision.task,
            end=end,
            fingerprint=decision.fingerprint,
            reasons=decision.reasons,
            outputs=record.outputs,
            summary=summary,
        )

    def _lock(self, task: Task) -> Path:
        return self.graph.artifacts / "locks" / f"{folder_name(task.name)}.lock"

    @contextmanager
    def _scratch(self, task: Task) -> Iterator[Path]:
        """Yields an empty folder; remains of killed runs are removed first. Its name differs in each run on purpose.

        A program that outlived its killed run still writes to the old one, and a path that leaks into a result shows.
        """
        # Only a run that does something needs it.
        import shutil

        above = self.graph.artifacts / "scratch" / folder_name(task.name)
        folder = above / os.urandom(6).hex()
        try:
            shutil.rmtree(above, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise write_failure(above, error) from error
        try:
            yield folder
        finally:
            # Not all that is there: it is another run's, if this one has lost its lock.
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                above.rmdir()

    def _remember_time(self, task: Task, record: Record, started: float, seconds: float) -> None:
        """Keeps start and duration beside the records, which hold no times."""
        file = self.graph.artifacts / "times" / f"{folder_name(task.name)}.json"
        entry = {"fingerprint": record.fingerprint, "started": round(started, 3), "seconds": round(seconds, 3)}
        write_whole(
            file, json.dumps([entry, *past_runs(self.graph, task.name)][:MAX_PAST_RUNS], indent=1) + "\n", sync=False
        )


@contextmanager
def _removals_told(task: Task, scratch: Path, attempt: Attempt) -> Iterator[None]:
    """Names the cause if a task fails because artifacts/ was removed while it ran."""
    try:
        yield
    except Exception as error:
        if cancelled() or scratch.is_dir():
            raise
        attempt.sure()
        raise TandemError(
            f"{scratch} was removed while {task.name} ran: nothing is recorded",
            hint="run it again, and remove artifacts/ only when nothing runs",
        ) from error


def past_runs(graph: Graph, task: str) -> list[dict[str, str | float]]:
    """Returns a task's last runs, newest first: fingerprint, started (seconds since 1970), seconds."""
    file = graph.artifacts / "times" / f"{folder_name(task)}.json"
    try:
        entries = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _handed(decision: Decision, results: Mapping[str, Outputs], scratch: Path, log: Log) -> Run:
    assert decision.fingerprint is not None
    return Run(log=log, upstream=results, fingerprint=decision.fingerprint, scratch=scratch)


def _plain(task: Task, outputs: Outputs) -> Outputs:
    """Returns the outputs as they will be read back. Raises TypeError (a bug) if they are not JSON."""
    if not isinstance(outputs, dict):
        raise TypeError(f"{task.name} returned {type(outputs).__name__}, not outputs")
    plain = json.loads(json.dumps(outputs))
    assert isinstance(plain, dict)
    return plain


def _failed(name: str, error: BaseException, log: TaskLog | None) -> Outcome:
    error = as_interruption(error) if cancelled() else as_disk_failure(error)
    text = "" if isinstance(error, TandemError) else redact.clean("".join(traceback.format_exception(error)))
    tail = tuple(log.tail) if log else ()
    if log:
        log.line(text.rstrip() or f"{error}")
    return Outcome(task=name, end=End.FAILED, error=error, traceback=text, log=log.path if log else None, tail=tail)
