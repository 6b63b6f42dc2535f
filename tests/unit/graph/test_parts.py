"""The graph's small parts: patterns, source, records, order, exit codes, screens."""

import io
import re
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import BusyError, Cancelled, ConfigError, Exit, HostError, TandemError
from pipeline.core.locks import hold_lock
from pipeline.core.log import NullLog, progress_text
from pipeline.graph.code_hash import CodeHashes
from pipeline.graph.decide import State, decide_all
from pipeline.graph.globs import expand
from pipeline.graph.graph import Graph
from pipeline.graph.records import Record, Records
from pipeline.graph.run.outcome import End, Outcome, exit_code
from pipeline.graph.run.output import PlainScreen, without_escapes
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.task import Inputs, Task


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (("*",), ["a.py", "b.txt"]),
        (("**",), [".hidden/x", "a.py", "b.txt", "d/a.py", "d/e/f.py"]),
        (("**/*.py",), ["a.py", "d/a.py", "d/e/f.py"]),
        (("d/*.py",), ["d/a.py"]),
        (("d",), ["d/a.py", "d/e/f.py"]),
        (("*/a.py",), ["d/a.py"]),
        (("?.py", "[b-c].*"), ["a.py", "b.txt"]),
        (("[!a].*",), ["b.txt"]),
        (("**", "!d/**", "!.hidden/**"), ["a.py", "b.txt"]),
        (("./a.py", "d//a.py", "gone"), ["a.py", "d/a.py", "gone"]),
        (("gone/*",), []),
        (("a.py/x",), ["a.py/x"]),
    ],
)
def test_patterns_find_files_as_people_expect(tmp_path: Path, patterns: tuple[str, ...], found: list[str]) -> None:
    for name in ("a.py", "b.txt", "d/a.py", "d/e/f.py", ".hidden/x", "d/__pycache__/a.pyc", ".git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert list(expand(str(tmp_path), patterns)) == found


def source_of(tmp_path: Path, **files: str) -> dict[str, str]:
    for name, text in files.items():
        path = tmp_path / "pipeline" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return dict(CodeHashes(tmp_path, StatCache(tmp_path / "cache.json")).of(["pipeline.stage"]))


def test_comments_layout_and_docstrings_do_not_count(tmp_path: Path) -> None:
    before = source_of(tmp_path, stage='"""Doc."""\ndef f(x):\n    """Doc."""\n    return x\n')
    after = source_of(tmp_path, stage="# comment\ndef f(\n    x,\n):\n    'Other.'\n\n    return (x)  # why\n")
    assert before == after
    assert before != source_of(tmp_path, stage="def f(x):\n    return x + 1\n")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 'a'", "x = b'a'"),
        ("x = f()", "x = f"),
        ("a; b", "b; a"),
        ("x = [a, b]", "x = (a, b)"),
        ("def f(a, *, b): pass", "def f(a, b): pass"),
        ("if a:\n  b\nelse:\n  c", "if a:\n  b\nc"),
        ("return_ = None", "return_ = ...")
    ],
)  # fmt: skip
def test_different_code_is_told_apart(tmp_path: Path, one: str, two: str) -> None:
    assert source_of(tmp_path, stage=one) != source_of(tmp_path, stage=two)


def test_what_a_module_imports_counts_at_any_depth_and_wherever_it_stands(tmp_path: Path) -> None:
    found = source_of(
        tmp_path,
        stage="import os\nfrom pipeline.core.log import step\ndef f():\n    from pipeline import helper\n",
        helper="import pipeline.deep as d\nfrom . import beside\n",
        deep="from pipeline.stage import f\n",
        beside="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pipeline import typed\n",
        typed="x = 1",
        core__log="def step():\n    pass\n",
        unrelated="x = 1",
    )
    expected = ["pipeline.beside", "pipeline.deep", "pipeline.helper", "pipeline.stage"]
    assert list(found) == expected


def test_the_else_branch_of_imports_for_type_checkers_counts(tmp_path: Path) -> None:
    stage = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {typed}\nelse:\n    {run}\n"
    before = source_of(tmp_path, stage=stage.format(typed="x = 1", run="from pipeline import helper"), helper="y = 1")
    assert list(before) == ["pipeline.helper", "pipeline.stage"]
    assert source_of(tmp_path, stage=stage.format(typed="x = 2", run="from pipeline import helper")) == before
    assert source_of(tmp_path, stage=stage.format(typed="x = 1", run="helper = None")) != before


def test_code_is_looked_at_once_until_it_is_forgotten(tmp_path: Path) -> None:
    before = source_of(tmp_path, stage="x = 1")
    hashes = CodeHashes(tmp_path, StatCache(tmp_path / "cache.json"))
    assert hashes.of(["pipeline.stage"]) == before
    after = source_of(tmp_path, stage="x = 2")
    assert hashes.of(["pipeline.stage"]) == before
    hashes.forget()
    assert hashes.of(["pipeline.stage"]) == after != before


OWN = """from pipeline import beside
def own(x):
    'What it does.'
    def inner():
        return helper(x)
    return inner
def helper(x):
    {helper}
def deeper():
    {deeper}
def other():
    {other}
LIMIT: int = {limit}
"""


def test_of_a_function_counts_what_it_names_in_its_own_module_and_nothing_else(tmp_path: Path) -> None:
    def hashed(**edits: str) -> str:
        parts = {"helper": "return deeper() + LIMIT", "deeper": "return 1", "other": "return 2", "limit": "5"}
        (folder := tmp_path / str(len(list(tmp_path.iterdir()))) / "pipeline").mkdir(parents=True)
        (folder / "stage.py").write_text(OWN.format(**parts | edits))
        cache = StatCache(tmp_path / "stats.json")
        return CodeHashes(folder.parent, cache).of(["pipeline.stage:own"])["pipeline.stage:own"]

    assert hashed() == hashed(other="return 3")
    assert len({hashed(), hashed(helper="return LIMIT"), hashed(deeper="return 2"), hashed(limit="6")}) == 4
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "stage.py").write_text("x = 1\n")
    found = CodeHashes(tmp_path, StatCache(tmp_path / "stats.json")).of(["pipeline.stage:own"])
    assert found == {"pipeline.stage:own": "missing"}


def test_a_package_hides_a_module_of_its_name_as_for_python(tmp_path: Path) -> None:
    (folder := tmp_path / "pipeline" / "stage").mkdir(parents=True)
    (folder / "__init__.py").write_text("x = 1\n")
    first = CodeHashes(tmp_path, StatCache(tmp_path / "stats.json")).of(["pipeline.stage"])
    (tmp_path / "pipeline" / "stage.py").write_text("x = 2\n")
    assert CodeHashes(tmp_path, StatCache(tmp_path / "stats.json")).of(["pipeline.stage"]) == first


def test_a_missing_module_says_so_and_a_broken_one_is_named(tmp_path: Path) -> None:
    assert source_of(tmp_path) == {"pipeline.stage": "missing"}
    with pytest.raises(ConfigError, match=r"stage\.py: not Python"):
        source_of(tmp_path, stage="def")


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    records = Records(tmp_path / "records", tmp_path / "aside")
    record = Record(task="a:b", fingerprint="f" * 64, inputs={"file:naïve \udcff": "x"}, outputs={"x": [1, None, "ü"]})
    assert records.read("a:b", "f" * 64) is None
    records.write(record)
    assert records.read("a:b", "f" * 64) == record == records.latest("a:b")
    assert list(records.all_of("a:b")) == [record]


def test_looking_names_a_damaged_record_and_leaves_it_where_it_is(tmp_path: Path) -> None:
    records = Records(tmp_path / "records", tmp_path / "aside")
    records.write(Record(task="a", fingerprint="f", inputs={}, outputs={}))
    path = records.path("a", "f")
    path.write_text("{")
    assert records.read("a", "f") is None
    assert path.exists()
    assert str(path) in records.notes[0]


def test_a_lock_excludes_and_says_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_LOCK_TIMEOUT", "0")
    log = NullLog()
    with (
        hold_lock(tmp_path / "lock", what="build:cpu", log=log),
        pytest.raises(BusyError, match="build:cpu is still run by process"),
        hold_lock(tmp_path / "lock", what="build:cpu", log=log),
    ):
        pass
    with hold_lock(tmp_path / "lock", what="build:cpu", log=log):
        pass


def make(name: str, *needs: str, after: tuple[str, ...] = (), params: dict[str, Any] | None = None) -> Task:
    return Task(
        name=name, doc="", inputs=Inputs(params=params or {}), needs=needs, after=after,
        run=lambda _run: {}, world=lambda _out: (),
    )  # fmt: skip


def test_the_order_puts_upstream_first_and_refuses_circles(tmp_path: Path) -> None:
    graph = Graph(tmp_path)
    graph.add(make("c", "b"), make("b", after=("a",)), make("a"), make("d"))
    assert graph.order() == ["a", "b", "c", "d"]
    assert graph.order(["b"]) == ["a", "b"]
    with pytest.raises(ConfigError, match="'nosuch' is not a task"):
        graph.order(["nosuch"])
    graph.add(make("x", "y"), make("y", "x"))
    with pytest.raises(ConfigError, match="wait for each other: x → y → x"):
        graph.order()
    with pytest.raises(ConfigError, match="taken"):
        graph.add(make("a"))


def test_looking_says_run_depends_and_skip(tmp_path: Path) -> None:
    def with_records(**params: int) -> Graph:
        graph = Graph(tmp_path)
        graph.add(make("a", params=dict(params)), make("b", "a"), make("c", "b"))
        return graph

    graph = with_records(x=1)
    assert [decision.state for decision in decide_all(graph).values()] == [State.RUN, State.RUN, State.RUN]
    for name in "abc":
        decision = decide_all(graph)[name]
        assert decision.fingerprint
        graph.records.write(
            Record(task=name, fingerprint=decision.fingerprint, inputs=decision.inputs, outputs={"made": name})
        )
    assert {decision.state for decision in decide_all(graph).values()} == {State.SKIP}
    changed = decide_all(with_records(x=2))
    assert [decision.state for decision in changed.values()] == [State.RUN, State.DEPENDS, State.DEPENDS]
    assert [(r.input, r.old, r.new) for r in changed["a"].reasons] == [("param:x", "1", "2")]
    assert [reason.input for reason in changed["b"].reasons] == ["upstream:a"]


def test_the_exit_code_is_the_first_that_applies() -> None:
    def failed(error: BaseException) -> Outcome:
        return Outcome(task="t", end=End.FAILED, error=error)

    errors = [TandemError(""), BusyError(""), HostError(""), ConfigError(""), ValueError(""), Cancelled("")]
    for i, code in enumerate([Exit.FAILED, Exit.BUSY, Exit.HOST, Exit.CONFIG, Exit.BUG, Exit.INTERRUPTED]):
        assert exit_code([failed(error) for error in errors[: i + 1]], interrupted=False) == code
    assert exit_code([], interrupted=True) == Exit.INTERRUPTED
    assert exit_code([Outcome(task="t", end=End.BLOCKED)], interrupted=False) == Exit.OK


def test_a_silent_task_is_heard_of_now_and_then() -> None:
    out = io.StringIO()
    screen = PlainScreen(out=out, heartbeat_s=0.3)
    screen.start("build:cpu")
    screen.progress("build:cpu", "layer 3/8 files")
    until = time.monotonic() + 20
    while out.getvalue().count("\n") < 2 and time.monotonic() < until:
        time.sleep(0.05)
    screen.close()
    assert re.match(r"build:cpu \| start\nbuild:cpu \| \d s: layer 3/8 files\n", out.getvalue())


def test_plain_output_shows_steps_and_keeps_the_rest_in_the_log() -> None:
    out = io.StringIO()
    screen = PlainScreen(out=out)
    screen.line("t", "a line", step=False)
    screen.line("t", "a step", step=True)
    assert out.getvalue() == "t | a step\n"


def test_progress_is_spelled_with_its_unit() -> None:
    assert progress_text("fetch", 12_000_000, 80_100_000, "B") == "fetch 12.0/80.1 MB"
    assert progress_text("fetch", 500_000, None, "B") == "fetch 0.5 MB"
    assert progress_text("engine", 12.4, 30, "s") == "engine 12 s, usually 30 s"
    assert progress_text("layers", 3, 8, "files") == "layers 3/8 files"


def test_colours_and_cursor_movements_of_programs_do_not_reach_the_screen() -> None:
    assert without_escapes("\x1b[1;32mgreen\x1b[0m\x1b[2K\x1b]0;title\x07 \x08x") == "green x"
