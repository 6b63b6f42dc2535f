"""All tasks of a project, and the place of their results. Every command starts from it."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pipeline.core.errors import ConfigError
from pipeline.graph.code_hash import PACKAGE, CodeHashes
from pipeline.graph.fingerprint import Surroundings
from pipeline.graph.keys import folder_name
from pipeline.graph.records import Records
from pipeline.graph.sharing import SharedRecords
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.task import Outputs, Task
from pipeline.graph.tools import Tools
from pipeline.graph.world import World


class Graph:
    """The tasks by name, with the registries of tools and claims.

    All state lies below `artifacts`: records/, times/, logs/, locks/, scratch/, aside/, cache/. Creating a graph reads
    nothing, and nothing is written before a task runs.
    """

    def __init__(self, root: Path, artifacts: Path | None = None) -> None:
        self.root = root
        self.artifacts = artifacts or root / "artifacts"
        self.cache = StatCache(self.artifacts / "cache" / "stats.json")
        self.records = Records(self.artifacts / "records", self.artifacts / "aside")
        self.tools = Tools()
        self.world = World(root, self.cache)
        self.code = CodeHashes(root, self.cache)
        self.tasks: dict[str, Task] = {}
        self._folders: dict[str, str] = {}
        self.defaults: dict[str, str] = {}
        """The task that a bare kind means, as in "deploy" → "deploy:local"."""
        self.configuration: Configuration | None = None
        """Where the tasks' parameters come from; None if dodo.py alone has them."""
        self.share: SharedRecords | None = None
        """Where checkouts share records; None if this one keeps its own."""
        self.results: dict[str, Outputs] = {}
        """The results of the tasks of this run; empty in a command that only looks."""

    @property
    def surroundings(self) -> Surroundings:
        """Returns what inputs are looked up in."""
        return Surroundings(root=self.root, tools=self.tools, cache=self.cache, code=self.code)

    def add(self, *tasks: Task) -> None:
        """Add tasks. The function that runs a task is an input of it.

        Raises ConfigError if a task's name, or the name of its folder, is taken.
        """
        for task in tasks:
            other = self._folders.setdefault(folder_name(task.name), task.name)
            if task.name in self.tasks or other != task.name:
                raise ConfigError(f"task {task.name!r}: the name is taken by {other!r}")
            code = (*task.inputs.code, *_own_code(task.run))
            self.tasks[task.name] = replace(task, inputs=replace(task.inputs, code=code))

    def order(self, names: Iterable[str] = ()) -> list[str]:
        """Returns these tasks (all, if none are named) and everything upstream, each after what it waits for.

        Raises ConfigError for an unknown task, or tasks that wait for each other.
        """
        ordered: dict[str, None] = {}
        for name in names or self.tasks:
            if name not in ordered:
                self._append(name, ordered)
        return list(ordered)

    def _append(self, name: str, ordered: dict[str, None]) -> None:
        """Append a task after all that it waits for. Without recursion: a chain may be longer than Python's stack."""
        path = {name: self._upstream(name)}
        while path:
            last = next(reversed(path))
            upstream = next(path[last], None)
            if upstream is None:
                del path[last]
                ordered[last] = None
            elif upstream in path:
                circle = [*path][[*path].index(upstream) :]
                raise ConfigError(f"tasks wait for each other: {' → '.join([*circle, upstream])}")
            elif upstream not in ordered:
                path[upstream] = self._upstream(upstream, needed_by=last)

    def _upstream(self, name: str, needed_by: str = "") -> Iterator[str]:
        if name not in self.tasks:
            by = f" (needed by {needed_by})" if needed_by else ""
            raise ConfigError(f"{name!r} is not a task{by}", hint=f"tasks: {', '.join(sorted(self.tasks))}")
        return iter((*self.tasks[name].needs, *self.tasks[name].after))


class Configuration(Struct, frozen=True, kw_only=True):
    """Tells how tasks follow from files, so that an edit of these files can be told from what it changes.

    `paths` are the files and folders below the checkout that hold the tasks' parameters; `graph` makes the graph of
    another folder that has (at least) these, and raises ConfigError if they are wrong.
    """

    paths: tuple[str, ...]
    graph: Callable[[Path], Graph]


def _own_code(run: Any) -> tuple[str, ...]:
    """Returns the function of `pipeline` in which a task's own is written, as in "pipeline.tasks.images:_build"."""
    module = getattr(run, "__module__", "")
    outermost = getattr(run, "__qualname__", "").partition(".")[0]
    return (f"{module}:{outermost}",) if module.startswith(f"{PACKAGE}.") and outermost else ()
