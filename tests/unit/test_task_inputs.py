"""What the project's tasks name as inputs exists: a module or file that was moved away would count for nothing."""

import ast
from pathlib import Path

import pytest

from pipeline.config import loader
from pipeline.graph import code_hash
from pipeline.graph.globs import expand
from pipeline.graph.stat_cache import StatCache
from pipeline.tasks import project

ROOT = Path(__file__).parents[2]
GRAPH = project.graph(loader.load(ROOT))


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


def test_modules_that_are_left_out_of_the_code_that_counts_exist(tmp_path: Path) -> None:
    named = {*code_hash.SPEAKS_ONLY, *code_hash.ONE_THAT_DECIDES}
    assert all(source_file(module).is_file() for module in named)
    decides = code_hash.ONE_THAT_DECIDES.values()
    found = {name: code_hash.modules(ROOT, [name], StatCache(tmp_path / "stats.json"))[name] for name in decides}
    assert "missing" not in found.values()
