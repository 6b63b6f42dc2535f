"""Imports go one way, and no module waits for itself; programs are started in one module; packages hold no code."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def test_no_module_waits_for_itself() -> None:
    order = tuple(TopologicalSorter({module: imports(module) for module in MODULES}).static_order())
    assert set(MODULES) <= set(order)


def test_programs_are_started_in_one_module() -> None:
    outside = [m for m, path in MODULES.items() if m != "core.procs" and "import subprocess" in path.read_text()]
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
