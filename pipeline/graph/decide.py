"""Decides whether a task runs, and why, by comparing inputs and checking claims. Changes nothing."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from pipeline.graph.fingerprint import Values, fingerprint, input_values, upstream_values
from pipeline.graph.graph import Graph
from pipeline.graph.keys import canonical_json
from pipeline.graph.records import Record
from pipeline.graph.task import MALFORMED, Outputs, Task
from pipeline.graph.world import NEVER

HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")
UNKNOWN = "not known before it has run"


class State(StrEnum):
    """What a task would do now."""

    SKIP = "skip"
    RESTORE = "restore"
    RUN = "run"
    DEPENDS = "depends"
    """It depends on the result of an upstream task, which has to run first."""
    LATER = "later"
    """A lazy task's result is known and its product is gone. It is made again only if a task that reads it runs."""


class Reason(Struct, frozen=True, kw_only=True):
    """One difference: `input` is a key such as "file:dodo.py", "world:image" or "record"; None is "was not there"."""

    input: str
    old: str | None
    new: str | None

    @property
    def text(self) -> str:
        """Returns the reason for people, with short hashes: `file:dodo.py: 644 1f0c3a… → 755 1f0c3a…`."""
        old, new = (HASH.sub(r"\1…", text) if text else "nothing" for text in (self.old, self.new))
        return f"{self.input}: {new if self.old is None else f'{old} → {new}'}"


class Decision(Struct, frozen=True, kw_only=True):
    """The decision what a task would do, and why.

    `record` is the result that is up to date or can be restored, `compared` the one that the reasons compare with.
    """

    task: str
    state: State
    fingerprint: str | None
    inputs: Values
    record: Record | None = None
    compared: Record | None = None
    reasons: tuple[Reason, ...] = ()

    @property
    def outputs(self) -> Outputs | None:
        """Returns the result, as far as it is known without running anything."""
        return self.record.outputs if self.record else None


def decide_all(graph: Graph, names: Iterable[str] = ()) -> dict[str, Decision]:
    """Decides what these tasks (all, if none are named) and everything upstream would do, in the order of a run.

    Raises ConfigError for an unknown task or a wrong declaration, TandemError for an unreadable input.
    """
    asked = tuple(names)
    decisions: dict[str, Decision] = {}
    order = graph.order(asked)
    prefetch_claims(graph, order)
    for name in order:
        results = {need: decisions[need].outputs for need in graph.tasks[name].needs}
        decisions[name] = decide(graph, graph.tasks[name], results, asked=name in asked)
    # From the end: what one lazy task needs for its run may be another's.
    for name in reversed(decisions):
        for need in graph.tasks[name].needs if decisions[name].state is State.RUN else ():
            if decisions[need].state is State.LATER:
                decisions[need] = replace(decisions[need], state=_good_again(graph.tasks[need]))
    return decisions


def prefetch_claims(graph: Graph, names: Iterable[str]) -> None:
    """Begins to check the claims of the tasks' newest results, which are most likely the ones to be decided about.

    The last tasks' first: services take longest to answer.
    """
    for name in reversed(tuple(names)):
        # Another version of the stage may have recorded other things; whatever is wrong shows when it is looked at.
        with suppress(Exception):
            if latest := graph.records.latest(name):
                graph.world.prefetch(graph.tasks[name].world(latest.outputs))


def decide(graph: Graph, task: Task, results: Mapping[str, Outputs | None], *, asked: bool) -> Decision:
    """Decides what the task would do, given the results of its upstream (None: that task has to run first).

    A lazy task that is `asked` for, by name or by a task that has to run, is like any other. Raises what look() raises.
    """
    inputs = input_values(task.inputs, graph.surroundings) | upstream_values(
        {n: out for n, out in results.items() if out is not None}
    )
    unknown = [name for name in task.needs if results[name] is None]
    if unknown:
        return _depending(graph, task, inputs, unknown)
    key = fingerprint(task.name, inputs)
    record = _sound(graph, task, graph.records.read(task.name, key))
    if record is None:
        compared = graph.records.latest(task.name)
        if compared and compared.fingerprint == key:
            compared = None  # it is the one that is damaged
        reasons = _differences(compared, inputs)
        return Decision(
            task=task.name, state=State.RUN, fingerprint=key, inputs=inputs, compared=compared, reasons=reasons
        )
    broken = broken_claims(graph, task, record.outputs)
    state = _state(task, broken, asked=asked)
    return Decision(
        task=task.name,
        state=state,
        fingerprint=key,
        inputs=inputs,
        # What must be made again may come out differently: its old result is no promise to those downstream.
        record=None if state is State.RUN else record,
        compared=record,
        reasons=broken,
    )


def _sound(graph: Graph, task: Task, record: Record | None) -> Record | None:
    """Returns the record if today's code understands its outputs; otherwise it counts as absent."""
    try:
        if record:
            task.world(record.outputs)
    except MALFORMED as error:
        assert record
        graph.records.set_aside(record, error)
        return None
    return record


def broken_claims(graph: Graph, task: Task, outputs: Outputs) -> tuple[Reason, ...]:
    """Returns the claims of a result that do not hold any more."""
    return tuple(
        Reason(input=f"world:{claim.kind}", old=canonical_json(dict(claim.what)), new=why)
        for claim, why in graph.world.broken(task.world(outputs))
    )


def changed_inputs(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Reason, ...]:
    """Returns the inputs that differ, by key."""
    keys = sorted(old.keys() | new.keys())
    return tuple(Reason(input=k, old=old.get(k), new=new.get(k)) for k in keys if old.get(k) != new.get(k))


def _state(task: Task, broken: tuple[Reason, ...], *, asked: bool) -> State:
    """Returns what a task with a result for today's inputs would do."""
    if not broken:
        return State.SKIP
    if any(reason.input == f"world:{NEVER}" for reason in broken):
        return State.RUN
    return State.LATER if task.lazy and not asked else _good_again(task)


def _good_again(task: Task) -> State:
    return State.RESTORE if task.restore else State.RUN


def _differences(compared: Record | None, inputs: Values) -> tuple[Reason, ...]:
    if compared is None:
        return (Reason(input="record", old=None, new="there is no result yet"),)
    return changed_inputs(compared.inputs, inputs) or (
        Reason(input="record", old=compared.fingerprint, new="this version of Tandem spells fingerprints differently"),
    )


def _depending(graph: Graph, task: Task, inputs: Values, unknown: list[str]) -> Decision:
    """A skip is possible if an earlier result has the same inputs, apart from those that are not known yet."""
    open_keys = {f"upstream:{name}" for name in unknown}

    def rest(record: Record) -> dict[str, str]:
        return {key: value for key, value in record.inputs.items() if key not in open_keys}

    latest = graph.records.latest(task.name)
    possible = (latest is not None and rest(latest) == inputs) or any(
        rest(record) == inputs for record in graph.records.all_of(task.name)
    )
    old = latest.inputs if latest else {}
    waiting = tuple(Reason(input=key, old=old.get(key), new=UNKNOWN) for key in sorted(open_keys))
    others = changed_inputs(rest(latest), inputs) if latest else _differences(None, inputs)
    return Decision(
        task=task.name,
        state=State.DEPENDS if possible else State.RUN,
        fingerprint=None,
        inputs=inputs,
        compared=latest,
        reasons=others + waiting,
    )
