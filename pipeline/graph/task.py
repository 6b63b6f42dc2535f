"""What a task is: the one place where it names its inputs, its upstream and its claims on the world."""

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from pipeline.core.log import Log

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, AssertionError)
"""What a task's own code raises at outputs that another version of it recorded, or nobody."""
Outputs = dict[str, Json]
"""What a task hands on. No times and no path of the checkout's own location: its hash is the result's identity."""


class Inputs(Struct, frozen=True, kw_only=True):
    """Everything that decides a task's result, apart from its upstream.

    `files` are globs below the checkout's root (`**` for any depth); a literal that is missing counts as
    "missing", which is not the same as empty. `params` is the part of the configuration that the task reads.
    `named` are sets of inputs shared by tasks, `env` environment variables (unset is not empty), `tools` names
    from the registry of tools, `code` modules such as "pipeline.image.base", with what they import inside pipeline.
    """

    files: tuple[str, ...] = ()
    params: Mapping[str, Json] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


class Claim(Struct, frozen=True, kw_only=True):
    """Something that a record says of the world, checked over sockets or by stat."""

    kind: str
    what: Mapping[str, Json]


class Run(Struct, frozen=True, kw_only=True):
    """What a running task is handed. `scratch` is an empty folder of its own, removed afterwards."""

    log: Log
    upstream: Mapping[str, Outputs]
    fingerprint: str
    scratch: Path


class Task(Struct, frozen=True, kw_only=True):
    """One node of the graph.

    `needs` are upstream tasks whose outputs' digest is an input; `after` is order only. `restore` makes an
    earlier record's claims true again without redoing the work, or raises TandemError if it cannot. A `lazy` task
    makes what only its consumers read: if that is gone, it is made again when one of them runs, not before. Results
    of a `shared` task may come from another checkout. `commits` are files below the root that it makes and that are
    committed: a change of them is one of its result.
    """

    name: str
    doc: str
    inputs: Inputs
    run: Callable[[Run], Outputs]
    world: Callable[[Outputs], tuple[Claim, ...]]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    restore: Callable[[Run, Outputs], None] | None = None
    lazy: bool = False
    shared: bool = False
    commits: tuple[str, ...] = ()
