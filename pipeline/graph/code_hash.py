"""The hash of a stage's code: its modules' source, without what cannot change a result.

Comments, layout and docstrings do not count, nor does the body of `if TYPE_CHECKING:`. A module counts with every
module of `pipeline` that it imports, at any depth, wherever the import stands (we import late on purpose).
"""

# A Path for each name that is not a module costs more than all else here.
# ruff: noqa: PTH118

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from pipeline.core.errors import ConfigError
from pipeline.graph.stat_cache import StatCache

PACKAGE = "pipeline"
SPEAKS_ONLY = {"pipeline.core.errors", "pipeline.core.log", "pipeline.core.redact"}
"""Their messages change no result. `procs` does count: it decides a program's environment."""


class CodeHashes:
    """The hashes of modules and functions of `pipeline`. Each is looked up once, until `forget()`.

    Thousands of tasks consist of the same modules: only the first of them pays for the look at the files.
    """

    def __init__(self, root: Path, cache: StatCache) -> None:
        self._root = root
        self._cache = cache
        self._snapshot = _Snapshot(root, cache)

    def of(self, names: Iterable[str]) -> Mapping[str, str]:
        """Returns the hash of every module that the named ones consist of; "missing" for one that does not exist.

        A name such as "pipeline.tasks.project:build" is one function, with what it uses of its own module and nothing
        else. Raises ConfigError for source that cannot be parsed, OSError for source that cannot be read.
        """
        return self._snapshot.hashes(frozenset(names))

    def forget(self) -> None:
        """Look at the files again from now on: they may have been edited."""
        self._snapshot = _Snapshot(self._root, self._cache)


class _Snapshot:
    """The code as it was when each file of it was first looked at. Safe to use from several threads."""

    def __init__(self, root: Path, cache: StatCache) -> None:
        self._files = _Files(root)
        self._cache = cache
        self._modules: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._hashes: dict[frozenset[str], Mapping[str, str]] = {}

    def hashes(self, names: frozenset[str]) -> Mapping[str, str]:
        """Returns the hashes of these modules and functions, and of all that the modules import."""
        if names not in self._hashes:
            self._hashes[names] = self._find(names)
        return self._hashes[names]

    def _find(self, names: Iterable[str]) -> Mapping[str, str]:
        hashes: dict[str, str] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in hashes or name in SPEAKS_ONLY:
                continue
            if name not in self._modules:
                self._modules[name] = self._learn(name)
            hashes[name], imports = self._modules[name]
            waiting.extend(imports)
        return dict(sorted(hashes.items()))

    def _learn(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Returns the hash of a module or function, and the modules that it imports."""
        module, _, function = name.partition(":")
        file = self._files.of(module)
        if file is None:
            return "missing", ()
        if function:
            return self._cache.fact(f"code {name}", file, partial(_learn_function, function)), ()
        known = json.loads(self._cache.fact(f"code {name}", file, partial(_learn, name)))
        return known["hash"], tuple(target for target in known["imports"] if self._files.of(target) is not None)


class _Files:
    """The files of modules. Each folder is listed once, since most names that an import may mean are not modules."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._listed: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def of(self, name: str) -> str | None:
        """Returns the file of a module or package by its dotted name, or None."""
        above, _, last = name.rpartition(".")
        folders, files = self._list(above)
        # As Python looks: a package hides a module of its name.
        if last in folders and "__init__.py" in self._list(name)[1]:
            return f"{self._path(name)}/__init__.py"
        return f"{self._path(name)}.py" if f"{last}.py" in files else None

    def _list(self, package: str) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the names of the folders and of the files in a package's folder; empty if there is no such folder."""
        if package not in self._listed:
            above, _, last = package.rpartition(".")
            entries: list[os.DirEntry[str]] = []
            if not package or last in self._list(above)[0]:
                with os.scandir(self._path(package)) as listing:
                    entries = list(listing)
            folders = frozenset(entry.name for entry in entries if entry.is_dir())
            self._listed[package] = folders, frozenset(entry.name for entry in entries if entry.is_file())
        return self._listed[package]

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name.replace(".", "/"))


def _learn(name: str, path: str) -> str:
    file, tree = Path(path), _parsed(path)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports = sorted({target for node in _running(tree) for target in _targets(node, package)})
    return json.dumps({"hash": _hash(_spell(tree)), "imports": imports})


def _learn_function(name: str, path: str) -> str:
    """Returns the hash of a function with all of its module that it names, directly or not, or "missing"."""
    definitions = {bound: node for node in _parsed(path).body for bound in _bound(node)}
    if name not in definitions:
        return "missing"
    used: set[str] = set()
    waiting = [name]
    while waiting:
        used.add(bound := waiting.pop())
        named = {node.id for node in ast.walk(definitions[bound]) if isinstance(node, ast.Name)}
        waiting.extend((named & definitions.keys()) - used - {*waiting})
    return _hash("".join(f"{bound} {_spell(definitions[bound])}\n" for bound in sorted(used)))


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yields the names that a definition or an assignment binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def _parsed(path: str) -> ast.Module:
    try:
        return ast.parse(Path(path).read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path}: not Python: {error}") from error


def _hash(spelled: str) -> str:
    return hashlib.sha256(spelled.encode("utf-8", "surrogatepass")).hexdigest()


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yields every node that can run: of `if TYPE_CHECKING:` those of the else branch."""
    yield node
    for child in node.orelse if _for_types(node) else ast.iter_child_nodes(node):
        yield from _running(child)


def _for_types(node: object) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _run_in_place(items: Iterable[Any]) -> Iterator[Any]:
    """Yields the items of a list in a tree, with the else branch of `if TYPE_CHECKING:` in its place."""
    for item in items:
        if _for_types(item):
            yield from _run_in_place(item.orelse)
        else:
            yield item


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    """Yields the modules of ours that an import may mean: in `from a import b`, b can be a module or a name in a."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
    else:
        return
    yield from (name for name in names if name == PACKAGE or name.startswith(PACKAGE + "."))


def _spell(node: object) -> str:
    """Returns one spelling of a syntax tree. ast.dump differs between versions of Python, and counts positions."""
    if isinstance(node, list):
        return "[" + " ".join(_spell(item) for item in _run_in_place(node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [type(node).__name__]
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(value, list):
            value = _without_texts(value)
        if value is not None and value != [] and field not in ("type_comment", "type_ignores", "kind"):
            parts.append(f"{field}={_spell(value)}")
    return "(" + " ".join(parts) + ")"


def _without_texts(body: list[ast.stmt]) -> list[ast.stmt]:
    """Leaves out constants that stand alone: docstrings, and the texts below our type aliases."""
    return [item for item in body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]
