"""Checks that nothing changed while a task ran: its code, the files of its upstream, its inputs.

Otherwise its result would be recorded, and believed, under inputs that it does not follow from.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from pipeline.core.errors import TandemError
from pipeline.graph.decide import Decision, changed_inputs
from pipeline.graph.fingerprint import Values, code_values, input_values
from pipeline.graph.graph import Graph
from pipeline.graph.task import Outputs, Task
from pipeline.graph.world import ON_DISK


def read_code(graph: Graph, names: Iterable[str]) -> Values:
    """Returns the code hashes of all these tasks now; empty if code cannot be read, which the task itself reports."""
    with suppress(TandemError):
        return dict(code_values({name for task in names for name in graph.tasks[task].inputs.code}, graph.surroundings))
    return {}


def check_code_unchanged(task: Task, decision: Decision, before: Values) -> None:
    """Raises TandemError if code of the task was edited since `before`: this process still runs the old code."""
    edited = [key for key, value in decision.inputs.items() if before.get(key, value) != value]
    if edited:
        names = ", ".join(key.partition(":")[2] for key in edited)
        raise TandemError(
            f"{names} changed since this run began: {task.name} is not run", hint="run it again, as a new process"
        )


def check_upstream_intact(graph: Graph, task: Task, results: Mapping[str, Outputs]) -> None:
    """Raises TandemError if files that this run has seen upstream were changed by an editor or another run.

    With `--single` nothing is checked: the run has not looked at them.
    """
    for name in task.needs:
        claims = graph.tasks[name].world(results[name]) if name in graph.results else ()
        for _, why in graph.world.broken(claim for claim in claims if claim.kind == ON_DISK):
            raise TandemError(
                f"{why}, which is a result of {name}, while {task.name} needs it: nothing is recorded",
                hint="run it again, and leave results alone meanwhile",
            )


def check_inputs_unchanged(graph: Graph, task: Task, decision: Decision) -> None:
    """Raises TandemError if an input changed since the task began. Tools and code are looked at again."""
    graph.tools.forget()
    graph.code.forget()
    now = input_values(task.inputs, graph.surroundings)
    before = {key: value for key, value in decision.inputs.items() if not key.startswith("upstream:")}
    if moved := changed_inputs(before, now):
        names = ", ".join(reason.input.partition(":")[2] for reason in moved)
        raise TandemError(
            f"{names} changed while {task.name} ran: nothing is recorded",
            hint="run it again, and leave its inputs alone meanwhile",
        )
