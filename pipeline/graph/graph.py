"""All tasks of a project, and where their results are kept: what every command starts from."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pipeline.core.errors import ConfigError
from pipeline.graph.code_hash import PACKAGE
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

    Everything that is kept lies below `artifacts`: records/, times/, logs/, locks/, scratch/, aside/, cache/.
    Making one reads nothing; nothing is written before a task runs.
    """

    def __init__(self, root: Path, artifacts: Path | None = None) -> None:
        self.root = root
        self.artifacts = artifacts or root / "artifacts"
        self.cache = StatCache(self.artifacts / "cache" / "stats.json")
        self.records = Records(self.artifacts / "records", self.artifacts / "aside")
        self.tools = Tools()
        self.world = World(root, self.cache)
        self.tasks: dict[str, Task] = {}
        self.defaults: dict[str, str] = {}
        """The task that a bare kind means, as in "deploy" → "deploy:local"."""
        self.configuration: Configuration | None = None
        """Where the tasks' parameters come from; None if nowhere but dodo.py."""
        self.share: SharedRecords | None = None
        """Where checkouts share records; None if this one keeps its own."""
        self.results: dict[str, Outputs] = {}
        """What the tasks of this run came to; empty in a command that only looks."""

    @property
    def surroundings(self) -> Surroundings:
        """What inputs are looked up in."""
        return Surroundings(root=self.root, tools=self.tools, cache=self.cache)

    def add(self, *tasks: Task) -> None:
        """Add tasks; the function that runs one is an input of it. Raises ConfigError if a name is taken.

        So is the name of its folder.
        """
        folders = {folder_name(name): name for name in self.tasks}
        for task in tasks:
            taken = folders.setdefault(folder_name(task.name), task.name)
            if task.name in self.tasks or taken != task.name:
                raise ConfigError(f"task {task.name!r}: the name is taken by {taken!r}")
            own = _own_code(task.run)
            self.tasks[task.name] = replace(task, inputs=replace(task.inputs, code=(*task.inputs.code, *own)))

    def order(self, names: Iterable[str] = ()) -> list[str]:
        """These tasks (all, if none are named) and everything upstream, each after what it waits for.

        Raises ConfigError for an unknown task, or tasks that wait for each other.
        """
        found: list[str] = []
        for name in names or self.tasks:
            self._visit(name, (), found)
        return found

    def _visit(self, name: str, above: tuple[str, ...], found: list[str]) -> None:
        if name in above:
            raise ConfigError(f"tasks wait for each other: {' → '.join([*above[above.index(name) :], name])}")
        if name not in self.tasks:
            by = f" (needed by {above[-1]})" if above else ""
            raise ConfigError(f"{name!r} is not a task{by}", hint=f"tasks: {', '.join(sorted(self.tasks))}")
        if name in found:
            return
        for upstream in (*self.tasks[name].needs, *self.tasks[name].after):
            self._visit(upstream, (*above, name), found)
        found.append(name)


class Configuration(Struct, frozen=True, kw_only=True):
    """Tells how tasks follow from files, so that an edit of these files can be told from what it changes.

    `paths` are the files and folders below the checkout that hold the tasks' parameters; `graph` makes the graph of
    another folder that has (at least) these, and raises ConfigError if they are wrong.
    """

    paths: tuple[str, ...]
    graph: Callable[[Path], Graph]


def _own_code(run: Any) -> tuple[str, ...]:
    """The function of ours in which a task's own is written, as in "pipeline.tasks.images:_build"."""
    module = getattr(run, "__module__", "")
    outermost = getattr(run, "__qualname__", "").partition(".")[0]
    return (f"{module}:{outermost}",) if module.startswith(f"{PACKAGE}.") and outermost else ()
