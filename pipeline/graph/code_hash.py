"""What a stage's code says: its modules' source, without what cannot change a result.

Comments, layout and docstrings do not count, nor do imports for type checkers alone. A module counts with every
module of `pipeline` that it imports, at any depth, wherever the import stands (we import late on purpose).
"""

# A Path for each name that is no module costs more than all else here.
# ruff: noqa: PTH118

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.graph.stat_cache import StatCache

PACKAGE = "pipeline"
SPEAKS_ONLY = {"pipeline.core.errors", "pipeline.core.log"}
"""What a failure or a log line says changes no result. procs does count: it decides a program's environment."""


def modules(root: Path, names: Iterable[str], cache: StatCache) -> dict[str, str]:
    """Every module that the named ones consist of, with the hash of its source; "missing" for one that is not there.

    A name such as "pipeline.tasks.project:build" is one function, with what it uses of its own module and nothing else.
    Raises ConfigError for source that cannot be parsed, OSError for source that cannot be read.
    """
    found: dict[str, str] = {}
    waiting = list(names)
    files = _Files(root)
    while waiting:
        name = waiting.pop()
        if name in found or name in SPEAKS_ONLY:
            continue
        module, _, function = name.partition(":")
        file = files.of(module)
        if file is None:
            found[name] = "missing"
            continue
        if function:
            found[name] = cache.fact(f"code {name}", file, partial(_learn_function, function))
            continue
        known = json.loads(cache.fact(f"code {name}", file, partial(_learn, name)))
        found[name] = known["hash"]
        waiting.extend(target for target in known["imports"] if files.of(target) is not None)
    return dict(sorted(found.items()))


class _Files:
    """Where modules are at this moment: each folder is listed once, as most names that an import may mean are none."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._listed: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def of(self, name: str) -> str | None:
        """The file of a module or package, by its dotted name; None if there is none."""
        above, _, last = name.rpartition(".")
        folders, files = self._inside(above)
        # As Python looks: a package hides a module of its name.
        if last in folders and "__init__.py" in self._inside(name)[1]:
            return f"{self._path(name)}/__init__.py"
        return f"{self._path(name)}.py" if f"{last}.py" in files else None

    def _inside(self, package: str) -> tuple[frozenset[str], frozenset[str]]:
        """The names of the folders and of the files in a package's folder; none if there is no such folder."""
        if package not in self._listed:
            above, _, last = package.rpartition(".")
            found: list[os.DirEntry[str]] = []
            if not package or last in self._inside(above)[0]:
                with os.scandir(self._path(package)) as entries:
                    found = list(entries)
            folders = frozenset(entry.name for entry in found if entry.is_dir())
            self._listed[package] = folders, frozenset(entry.name for entry in found if entry.is_file())
        return self._listed[package]

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name.replace(".", "/"))


def _learn(name: str, path: str) -> str:
    file, tree = Path(path), _parsed(path)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports = sorted({target for node in _running(tree) for target in _targets(node, package)})
    return json.dumps({"hash": _hash(_spell(tree)), "imports": imports})


def _learn_function(name: str, path: str) -> str:
    """The hash of a function and of whatever else of its module it names, directly or not; "missing" without one."""
    there = {bound: node for node in _parsed(path).body for bound in _bound(node)}
    if name not in there:
        return "missing"
    found: set[str] = set()
    waiting = [name]
    while waiting:
        found.add(bound := waiting.pop())
        named = {node.id for node in ast.walk(there[bound]) if isinstance(node, ast.Name)}
        waiting.extend((named & there.keys()) - found - {*waiting})
    return _hash("".join(f"{bound} {_spell(there[bound])}\n" for bound in sorted(found)))


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a definition or an assignment binds."""
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
    """Every node that can run; not the body of `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not _for_types(child):
            yield from _running(child)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    """The modules of ours that an import may mean: in `from a import b`, b can be a module or a name in a."""
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
    """One spelling of a syntax tree, by hand: ast.dump differs between versions of Python, and counts positions."""
    if isinstance(node, list):
        return "[" + " ".join(_spell(item) for item in node if not _for_types_only(item)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [type(node).__name__]
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(value, list):
            value = _without_texts(value)
        if value is not None and value != [] and field not in ("type_comment", "type_ignores", "kind"):
            parts.append(f"{field}={_spell(value)}")
    return "(" + " ".join(parts) + ")"


def _for_types_only(item: object) -> bool:
    return isinstance(item, ast.AST) and _for_types(item)


def _without_texts(body: list[ast.stmt]) -> list[ast.stmt]:
    """Without constants that stand alone: docstrings, and the texts below our type aliases."""
    return [item for item in body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]
