"""Finds the tasks that a git change touches, by the inputs and results that they declare, and all downstream."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, HostError, TandemError
from pipeline.core.procs import SEALED, ProgramError, capture
from pipeline.graph.decide import changed_inputs as differences
from pipeline.graph.fingerprint import Values, input_values
from pipeline.graph.globs import expand
from pipeline.graph.graph import Graph
from pipeline.graph.task import Inputs, Json

QUIET = {"GIT_OPTIONAL_LOCKS": "0"}
GIT_HEARS = (*SEALED, "HOME", "XDG_CONFIG_HOME")  # whose checkouts git may read is said there


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The paths that differ between a commit and the working tree; `gone` are those that do not exist any more."""

    base: str
    commit: str
    paths: tuple[str, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TouchedTask:
    """A task, its inputs and committed results that changed, and the touched tasks upstream of it."""

    task: str
    inputs: tuple[str, ...]
    upstream: tuple[str, ...]


def changes_since(root: Path, base: str) -> Changes:
    """Returns the changes since `base` and this branch parted: commits, the index, the working tree and new files.

    Raises ConfigError for an unknown revision, HostError without git or a repository.
    """
    try:
        _git(root, "rev-parse", "--git-dir")
    except ProgramError as error:
        raise HostError(
            f"{root}: git sees no repository here: {error.output.strip()}", hint="affected compares with a commit"
        ) from error
    try:
        commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}").strip()
    except ProgramError as error:
        raise ConfigError(
            f"{base!r} is not a commit here", hint="a branch, a tag or a hash; a shallow clone lacks older ones"
        ) from error
    try:
        commit = _git(root, "merge-base", commit, "HEAD").strip()
    except ProgramError as error:
        if error.output.strip():
            raise
        # No common history: compare the two as they are.
    changed = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    paths = sorted({path for path in (changed + untracked).split("\0") if path})
    gone = tuple(path for path in paths if not os.path.lexists(root / path))
    return Changes(base=base, commit=commit, paths=tuple(paths), gone=gone)


def touched_tasks(graph: Graph, changes: Changes) -> list[TouchedTask]:
    """Returns the tasks that the changes touch, and all downstream, in the order of a run. Raises TandemError."""
    before = _parameters_before(graph, changes)
    touched: dict[str, TouchedTask] = {}
    with _ghosts(changes) as ghosts:
        for name in graph.order():
            task = graph.tasks[name]
            results = [f"file:{path}" for path in task.commits if path in changes.paths]
            inputs = [*_inputs(graph, task.inputs, changes, ghosts), *results, *before(name)]
            upstream = tuple(need for need in task.needs if need in touched)
            if inputs or upstream:
                touched[name] = TouchedTask(task=name, inputs=tuple(dict.fromkeys(inputs)), upstream=upstream)
    return list(touched.values())


@contextmanager
def _ghosts(changes: Changes) -> Iterator[Path | None]:
    """Yields a folder with an empty file for each path that is gone, so that patterns can be tried on them."""
    if not changes.gone:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in changes.gone:
            ghost = Path(folder, path)
            ghost.parent.mkdir(parents=True, exist_ok=True)
            ghost.touch()
        yield Path(folder)


def _inputs(graph: Graph, inputs: Inputs, changes: Changes, ghosts: Path | None) -> Iterator[str]:
    """Yields the declared files and modules among the changed paths."""
    changed_paths = set(changes.paths)
    for path in _files(graph.root, inputs.files, ghosts):
        if path in changed_paths:
            yield f"file:{path}"
    for module in graph.code.of(inputs.code):
        path = module.replace(".", "/")
        if changed_paths & {f"{path}.py", f"{path}/__init__.py"}:
            yield f"code:{module}"


def _files(root: Path, patterns: tuple[str, ...], ghosts: Path | None) -> Iterator[str]:
    """Yields the paths that patterns name, targets of links, and removed paths that they would name."""
    try:
        statuses = expand(os.fspath(root), patterns)
    except OSError as error:
        raise TandemError(f"{error.filename}: cannot be read: {error.strerror}") from error
    for path, status in statuses.items():
        yield path
        if status and stat.S_ISLNK(status.st_mode):
            yield os.path.relpath((root / path).resolve(), root.resolve())
    if ghosts:
        yield from (path for path, status in expand(os.fspath(ghosts), patterns).items() if status)


def _parameters_before(graph: Graph, changes: Changes) -> Callable[[str], list[str]]:
    """Returns a function that names the parameters of a task that the change changed."""
    configuration = graph.configuration
    if configuration is None or not any(_below(path, configuration.paths) for path in changes.paths):
        return lambda _name: []
    with tempfile.TemporaryDirectory() as folder:
        old_root = _check_out(graph.root, changes, configuration.paths, Path(folder))
        try:
            old = configuration.graph(old_root)
        except ConfigError:
            # It was wrong then: every parameter is new.
            old = Graph(old_root)
    return lambda name: [
        reason.input for reason in differences(_parameters(old, name), _parameters(graph, name)) if name in graph.tasks
    ]


def _parameters(graph: Graph, name: str) -> Values:
    task = graph.tasks.get(name)
    if task is None:
        return {}
    # A task without parameters differs from none, too.
    return {f"task:{name}": "there", **input_values(Inputs(params=task.inputs.params), graph.surroundings)}


def _check_out(root: Path, changes: Changes, paths: tuple[str, ...], folder: Path) -> Path:
    """Returns a root with the configuration of that commit, and with today's files that git ignores."""
    target = folder / "tree" / _git(root, "rev-parse", "--show-prefix").strip()
    target.mkdir(parents=True)
    index = {"GIT_INDEX_FILE": os.fspath(folder / "index")}
    _git(root, "read-tree", changes.commit, env=index)
    files = _git(root, "ls-files", "-z", "--", *paths, env=index)
    _git(root, "checkout-index", f"--prefix={folder}/tree/", "-z", "--stdin", env=index, stdin=files)
    for path in paths:
        if path not in changes.paths and not (target / path).exists() and (root / path).is_file():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes((root / path).read_bytes())
    return target


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _git(root: Path, *words: str, env: Mapping[str, str] | None = None, stdin: str | None = None) -> str:
    return capture(["git", "-C", os.fspath(root), *words], inherit=GIT_HEARS, env={**QUIET, **(env or {})}, stdin=stdin)


def touched_json(touched: list[TouchedTask]) -> Json:
    """Returns the value for `--json`."""
    return [
        {"task": task.task, "inputs": list[Json](task.inputs), "upstream": list[Json](task.upstream)}
        for task in touched
    ]


def count_touched(changes: Changes, touched: list[TouchedTask]) -> Mapping[str, int]:
    """Returns how many files changed, how many tasks that touches directly, and how many follow."""
    direct = sum(bool(task.inputs) for task in touched)
    return {"files": len(changes.paths), "touched": direct, "downstream": len(touched) - direct}
