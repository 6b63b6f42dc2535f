"""Makes doit's tasks from those of the graph."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from doit.exceptions import InvalidDodoFile

from pipeline.core.errors import ConfigError, TandemError
from pipeline.graph.decide import State, decide_all
from pipeline.graph.graph import Graph
from pipeline.graph.run.output import PlainScreen
from pipeline.graph.run.runner import Runner

GRAPH = "tandem.graph"
"""The key under which a doit task's `meta` holds the graph that it comes from."""


def to_doit(graph: Graph, kind: str) -> Iterator[dict[str, Any]]:
    """Yields the tasks of one kind ("build": `build:cpu`, …) for the generator `task_build` in dodo.py.

    Our `run` takes the graph from `meta`; the callables serve doit's other commands (`list -s`, `info`).
    """
    for name in graph.tasks:
        basename, _, sub = name.partition(":")
        if basename == kind:
            yield {**({"name": sub} if sub else {"basename": kind}), **_one(graph, name)}


def graph_of(tasks: Iterable[Any]) -> Graph:
    """Returns the graph that doit's tasks come from. Raises ConfigError for a task that does not come from it."""
    graphs = {task.name: (task.meta or {}).get(GRAPH) for task in tasks if task.actions}
    graph = next((graph for graph in graphs.values() if isinstance(graph, Graph)), None)
    for name, own in graphs.items():
        if own is not graph or graph is None:
            raise ConfigError(f"dodo.py: task {name!r} is not in the graph", hint="make it with to_doit(GRAPH, …)")
    if graph is None:
        raise ConfigError("dodo.py has no tasks", hint="make them with to_doit(GRAPH, …)")
    return graph


def _one(graph: Graph, name: str) -> dict[str, Any]:
    task = graph.tasks[name]
    return {
        "doc": task.doc,
        "actions": [(_act, [graph, name])],
        "uptodate": [(_up_to_date, [graph, name])],
        "task_dep": [*task.needs, *task.after],
        # doit would put its own stdout in place of the process's, for all threads at once.
        "io": {"capture": False},
        "meta": {GRAPH: graph},
    }


def _up_to_date(graph: Graph, name: str) -> bool:
    return decide_all(graph, [name])[name].state is State.SKIP


def _act(graph: Graph, name: str) -> None:
    outcome = Runner(graph, PlainScreen(), asked={name}).attempt(name)
    for ended in (*outcome.before, outcome):
        if ended.error:
            raise ended.error


@contextmanager
def errors_for_doit() -> Iterator[None]:
    """Turns a TandemError while dodo.py is read into the error that doit prints without a traceback."""
    try:
        yield
    except TandemError as error:
        raise InvalidDodoFile("\n".join([str(error), *([f"hint: {error.hint}"] if error.hint else [])])) from error
