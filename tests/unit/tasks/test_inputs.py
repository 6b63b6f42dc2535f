"""What the project's tasks name as inputs exists: a module or file that was moved away would count for nothing."""

import ast
import importlib
from pathlib import Path

import pytest

from pipeline.config import loader
from pipeline.config.models import CombinedImage
from pipeline.graph import code_hash
from pipeline.graph.globs import expand
from pipeline.tasks import project

ROOT = Path(__file__).parents[3]
CONFIG = loader.load_config(ROOT)
GRAPH = project.build_graph(CONFIG)


def source_file(module: str) -> Path:
    """The file of a module or package, by its dotted name."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("name", sorted(GRAPH.tasks))
def test_every_module_and_function_that_a_task_names_exists_and_holds_code(name: str) -> None:
    for code in GRAPH.tasks[name].inputs.code:
        module, _, function = code.partition(":")
        body = ast.parse(source_file(module).read_text()).body
        defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert defined, f"{code} holds no code"
        assert not function or function in defined, f"{code} does not exist"


@pytest.mark.parametrize("name", sorted(GRAPH.tasks))
def test_every_file_that_a_task_names_exists(name: str) -> None:
    for pattern in GRAPH.tasks[name].inputs.files:
        assert list(expand(str(ROOT), (pattern,))), f"{pattern} names no file"


def test_modules_that_are_left_out_of_the_code_that_counts_exist() -> None:
    assert all(source_file(module).is_file() for module in code_hash.SPEAKS_ONLY)


CANNOT_DECIDE = {
    "pipeline.core.errors",  # what a failure says
    "pipeline.core.log",
    "pipeline.core.redact",  # nor what is left out of it
    "pipeline.core.results",  # where a result is put, under the hash that the stage gave it
    "pipeline.graph.task",  # types
    "pipeline.tasks.outputs",  # a result in another form
}
"""What a task runs and does not count: no result can follow from it."""


def closure(name: str) -> set[str]:
    """Every module that counts as code of a task, if only one function of it does."""
    counted = GRAPH.code.of(GRAPH.tasks[name].inputs.code)
    return {module.partition(":")[0] for module in counted}


def running(function: str, tree: ast.Module) -> list[ast.AST]:
    """What runs with a task: the function `run` in the one that makes the task, and what it calls of its module."""
    there = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    (run,) = (node for node in ast.walk(there[function]) if isinstance(node, ast.FunctionDef) and node.name == "run")
    found: dict[str, ast.AST] = {"": run}
    waiting: list[ast.AST] = [run]
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name) and node.id in there and node.id not in found:
                found[node.id] = there[node.id]
                waiting.append(there[node.id])
    return list(found.values())


def imported(nodes: list[ast.AST], tree: ast.Module) -> set[str]:
    """The modules of ours that these functions use, imported in them or on top of their module."""
    bodies = [statement for top in nodes for statement in getattr(top, "body", [])]
    used = {node.id for top in bodies for node in ast.walk(top) if isinstance(node, ast.Name)}
    late = [node for top in bodies for node in ast.walk(top) if isinstance(node, ast.ImportFrom)]
    early = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = [(node.module, alias) for node in late for alias in node.names]
    names += [(node.module, alias) for node in early for alias in node.names if (alias.asname or alias.name) in used]
    return {
        inner if source_file(inner).is_file() else str(module)
        for module, alias in names
        if str(module).startswith("pipeline") and (inner := f"{module}.{alias.name}")
    }


@pytest.mark.parametrize("name", sorted(GRAPH.tasks))
def test_all_that_a_task_runs_is_among_its_code(name: str) -> None:
    (own,) = (code for code in GRAPH.tasks[name].inputs.code if code.startswith("pipeline.tasks."))
    module, _, function = own.partition(":")
    tree = ast.parse(source_file(module).read_text())
    assert imported(running(function, tree), tree) - CANNOT_DECIDE <= closure(name)


ON_IMAGES = tuple(f"build:{name}" for name, image in CONFIG.images.items() if isinstance(image, CombinedImage))
READ_BY = {
    "pipeline.image.bytecode.SCRIPT": ("base:", "wheels:", "build:"),
    "pipeline.smoke.containers.PROBES": ("smoke:",),  # the others know its labels only
    "pipeline.foreign.launcher_layer.NODE_SCRIPT_FILE": ON_IMAGES,  # laid on another image, and nowhere else
    "pipeline.foreign.facts_cache.ROOM": (),  # source, hashed to know whose facts are kept: it is code of those tasks
}
"""Which tasks read a file of a module that other tasks import as well."""


def read_beside(module: str) -> dict[str, Path]:
    """The files and folders that a module finds by its own place, by the name that it gives them."""
    body = ast.parse(source_file(module).read_text()).body
    found = [node for node in body if isinstance(node, ast.Assign) and "__file__" in ast.unparse(node.value)]
    names = [target.id for node in found for target in node.targets if isinstance(target, ast.Name)]
    return {name: getattr(importlib.import_module(module), name) for name in names}


@pytest.mark.parametrize("name", sorted(GRAPH.tasks))
def test_every_file_that_a_task_finds_beside_its_code_is_among_its_files(name: str) -> None:
    named = {ROOT / path for path in expand(str(ROOT), GRAPH.tasks[name].inputs.files)}
    for module in sorted(closure(name)):
        for constant, path in read_beside(module).items():
            if name.startswith(READ_BY.get(f"{module}.{constant}", name)):
                assert any(file == path or path in file.parents for file in named), f"{module}.{constant}: {path}"
