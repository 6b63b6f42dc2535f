"""Imports go one way: leaves, stages, graph, tasks, commands; and no module waits for itself."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAVES = {"errors", "log", "procs", "sockets", "models", "faults", "nearest", "sensible", "config", "yamlfile"}
SEAM = {"claims", "check_tasks", "image_tasks", "cluster_tasks", "tasks", "wanting"}
MODULES = {
    ".".join(path.relative_to(ROOT / "pipeline").with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "pipeline").rglob("*.py")
    if "probes" not in path.parts
}


def imports(module: str) -> set[str]:
    """The modules of pipeline that a module imports, wherever the import stands, except for type checkers."""
    found: set[str] = set()
    tree = ast.parse(MODULES[module].read_text())
    for branch in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
        if ast.unparse(branch.test) == "TYPE_CHECKING":
            branch.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pipeline":
            base = node.module.removeprefix("pipeline").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in MODULES else base)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("pipeline.") for a in node.names if a.name.startswith("pipeline.")}
    return found - {"", module}


def layer(module: str) -> int:
    """0 leaves, 1 stages, 2 graph, 3 the seam, 4 commands."""
    top = module.split(".")[0]
    if top == "commands":
        return 4
    if top == "graph":
        return 2
    return 0 if module in LEAVES else 3 if module in SEAM else 1


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_its_layer_and_below(module: str) -> None:
    above = {other for other in imports(module) if layer(other) > layer(module)}
    assert not above


@pytest.mark.parametrize("module", sorted(m for m in MODULES if layer(m) == 1))
def test_a_stage_knows_neither_graph_nor_doit(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    lines = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [line for line in lines if line.split()[1].partition(".")[0] == "doit"]
    assert not {other for other in imports(module) if layer(other) == 2}


def test_the_graph_knows_no_stage() -> None:
    known = {other for module in MODULES if layer(module) == 2 for other in imports(module) if layer(other) == 1}
    assert not known


def test_no_module_waits_for_itself() -> None:
    order = tuple(TopologicalSorter({module: imports(module) for module in MODULES}).static_order())
    assert set(MODULES) <= set(order)


def test_programs_are_started_in_one_module() -> None:
    outside = [m for m, path in MODULES.items() if m != "procs" and "import subprocess" in path.read_text()]
    assert outside == []


def test_packages_hold_no_code() -> None:
    for path in (ROOT / "pipeline").rglob("__init__.py"):
        body = ast.parse(path.read_text()).body
        assert all(isinstance(node, ast.Expr) for node in body), path


def test_a_list_of_the_engine_bears_that_one_goes_meanwhile() -> None:
    """The SDK asks once more for each thing in a list, and fails for all if one is gone by then."""
    for file in [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        named = [(ast.unparse(call.func), {word.arg for word in call.keywords}) for call in calls]
        assert not [name for name, _ in named if name.endswith("images.list")], f"{file}: engine.images does"
        assert all("ignore_removed" in words for name, words in named if name.endswith("containers.list")), file
