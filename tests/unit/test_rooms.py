"""The rooms of pipeline/ and what each may import; no module waits for itself; programs are started in one module."""

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {
    "core": set(),
    "config": {"core"},
    "graph": {"core"},
    "host": {"core"},
    "foreign": {"core", "config", "host"},
    "cluster": {"core", "config", "host"},
    "lock": {"core", "config", "foreign"},
    "image": {"core", "config", "host", "foreign", "lock"},
    "registry": {"core", "host", "lock"},
    "lab": {"core", "config", "host", "lock", "image"},
    "smoke": {"core", "config", "host", "foreign", "image", "lab"},
    "tasks": {"core", "config", "graph", "host", "lock", "image", "registry", "smoke", "cluster"},
    "commands": {"core", "config", "graph", "host", "foreign", "lock", "registry", "lab", "smoke", "cluster"},
}
"""Each room and the rooms that its modules may import; docs/architecture.md has the same table."""
MODULES = {
    ".".join(path.relative_to(ROOT / "pipeline").with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "pipeline").rglob("*.py")
    if "probes" not in path.parts and path.parent != ROOT / "pipeline"
}
KNOW_DOIT = ("commands.", "graph.run.")
RUN_BY_THE_MACHINES_PYTHON = ("host.venv",)


def imported_names(module: str) -> set[str]:
    """The dotted names that a module imports, wherever the import stands, except for type checkers."""
    names: set[str] = set()
    tree = ast.parse(MODULES[module].read_text())
    for branch in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
        if ast.unparse(branch.test) == "TYPE_CHECKING":
            branch.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def imports(module: str) -> set[str]:
    """The modules of pipeline that a module imports."""
    ours = [name.removeprefix("pipeline.") for name in imported_names(module) if name.startswith("pipeline.")]
    return {name if name in MODULES else name.rpartition(".")[0] for name in ours} - {module}


def room(module: str) -> str:
    """The room that a module lies in."""
    return module.partition(".")[0]


def test_every_module_lies_in_a_room() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)
    assert [path.name for path in (ROOT / "pipeline").glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_from_rooms_that_its_own_may_use(module: str) -> None:
    assert {room(other) for other in imports(module)} <= ROOMS[room(module)] | {room(module)}


def test_rooms_do_not_wait_for_each_other() -> None:
    assert set(TopologicalSorter(ROOMS).static_order()) == set(ROOMS)


def test_every_allowed_arrow_is_used() -> None:
    used = {name: {room(other) for m in MODULES if room(m) == name for other in imports(m)} for name in ROOMS}
    assert {name: used[name] - {name} for name in ROOMS} == ROOMS


def test_no_module_waits_for_itself() -> None:
    order = tuple(TopologicalSorter({module: imports(module) for module in MODULES}).static_order())
    assert set(MODULES) <= set(order)


@pytest.mark.parametrize("module", sorted(m for m in MODULES if not m.startswith(KNOW_DOIT)))
def test_only_commands_and_the_run_know_doit(module: str) -> None:
    assert not {name for name in imported_names(module) if name.partition(".")[0] == "doit"}


def test_what_the_machines_own_python_runs_needs_the_standard_library_only() -> None:
    waiting, reached = list(RUN_BY_THE_MACHINES_PYTHON), set[str]()
    while waiting:
        reached.add(module := waiting.pop())
        waiting.extend(imports(module) - reached)
    tops = {name.partition(".")[0] for module in reached for name in imported_names(module)}
    assert tops <= {*sys.stdlib_module_names, "pipeline"}


def test_programs_are_started_in_one_module() -> None:
    outside = [m for m, path in MODULES.items() if m != "core.procs" and "import subprocess" in path.read_text()]
    assert outside == []


def test_packages_hold_no_code_and_say_in_one_line_what_they_are_for() -> None:
    for path in (ROOT / "pipeline").rglob("__init__.py"):
        tree = ast.parse(path.read_text())
        assert len(tree.body) == 1, path
        assert re.fullmatch(r"[^\n]+\.", ast.get_docstring(tree) or ""), path


def test_a_list_of_the_engine_bears_that_one_goes_meanwhile() -> None:
    """The SDK asks once more for each thing in a list, and fails for all if one is gone by then."""
    for file in [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        named = [(ast.unparse(call.func), {word.arg for word in call.keywords}) for call in calls]
        assert not [name for name, _ in named if name.endswith("images.list")], f"{file}: use engine.list_images"
        assert all("ignore_removed" in words for name, words in named if name.endswith("containers.list")), file
