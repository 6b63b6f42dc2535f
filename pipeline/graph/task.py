"""The shape of a task: the one place where it names its inputs, its upstream tasks and its claims on the world."""

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from pipeline.core.log import Log

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, AssertionError)
"""The errors that a task's own code raises for outputs that another version of it recorded, or that are damaged."""
Outputs = dict[str, Json]
"""The values that a task hands on: no times, and no path of the checkout itself. Their hash identifies the result."""


class Inputs(Struct, frozen=True, kw_only=True):
    """Everything that decides a task's result, apart from its upstream tasks."""

    files: tuple[str, ...] = ()
    """Globs below the root (`**` for any depth). A literal that is missing counts as "missing", not as empty."""
    params: Mapping[str, Json] = field(default_factory=dict)
    """The part of the configuration that the task reads."""
    tools: tuple[str, ...] = ()
    """Names from the graph's registry of tools."""
    code: tuple[str, ...] = ()
    """Modules such as "pipeline.image.base", with all modules of `pipeline` that they import."""


class Claim(Struct, frozen=True, kw_only=True):
    """A statement of a record about the world. It is checked over sockets or by stat."""

    kind: str
    what: Mapping[str, Json]


class Run(Struct, frozen=True, kw_only=True):
    """What a running task is given."""

    log: Log
    upstream: Mapping[str, Outputs]
    fingerprint: str
    scratch: Path
    """An empty folder for this run alone. It is removed afterwards."""


class Task(Struct, frozen=True, kw_only=True):
    """One node of the graph."""

    name: str
    doc: str
    inputs: Inputs
    run: Callable[[Run], Outputs]
    world: Callable[[Outputs], tuple[Claim, ...]]
    """Returns the claims that a result makes."""
    needs: tuple[str, ...] = ()
    """Upstream tasks. The digests of their outputs are inputs of this task."""
    after: tuple[str, ...] = ()
    """Tasks that come first; nothing of them is an input."""
    restore: Callable[[Run, Outputs], None] | None = None
    """Makes the claims of an earlier record true again without redoing the work. Raises TandemError if it cannot."""
    lazy: bool = False
    """The task makes what only its consumers read. If that is gone, it is made again when one of them runs."""
    shared: bool = False
    """Results may come from another checkout."""
    summary: Callable[[Outputs], str] | None = None
    """Returns a few words on a result, for people: they are shown when the task is up to date."""
    commits: tuple[str, ...] = ()
    """Files below the root that the task writes and that are committed: a change of them changes its result."""
