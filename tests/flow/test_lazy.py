"""What only its consumers read is made again when one of them runs, not before."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.errors import TandemError
from pipeline.graph.graph import Graph
from pipeline.graph.run.outcome import End, Outcome
from pipeline.graph.run.output import PlainScreen
from pipeline.graph.run.runner import Runner
from pipeline.graph.task import Claim, Inputs, Outputs, Run, Task
from tests.flow.looking_project import Looking

LAZY = {"TOY_LAZY": "second:x"}
BOTH = {"TOY_LAZY": "first:x second:x"}


@pytest.fixture
def project(tmp_path: Path) -> Looking:
    """A project that has run, whose second text is gone."""
    made = Looking(tmp_path / "toy")
    made.fresh()
    (made.root / "artifacts/out/second:x.txt").unlink()
    return made


def test_what_is_gone_and_nothing_reads_is_not_made_again(project: Looking) -> None:
    done = project.doit(env=LAZY)
    assert done.code == 0
    assert project.happened() == []
    assert project.outcomes() == {"first:x": "skipped", "second:x": "later", "third:x": "skipped", "other:x": "skipped"}
    assert "second:x | not needed\n" in done.out


@pytest.mark.parametrize("words", [("second",), ("second:x",), ("second:*",), ("-n", "1", "third", "second")])
def test_who_names_it_gets_it(project: Looking, words: tuple[str, ...]) -> None:
    assert project.doit(*words, env=LAZY).code == 0
    assert project.happened() == ["run second:x"]
    assert project.outcomes()["second:x"] == "ran"


def test_a_task_that_has_to_run_has_it_made_first(project: Looking) -> None:
    (project.root / "artifacts/out/third:x.txt").unlink()
    done = project.doit("third", env=LAZY)
    assert done.code == 0, done.out
    assert project.happened() == ["run second:x", "run third:x"]
    assert project.outcomes() == {"first:x": "skipped", "second:x": "ran", "third:x": "ran"}
    lines = [line for line in done.out.splitlines() if line.startswith("second:x | ")]
    assert lines[:2] == ["second:x | not needed", "second:x | start"]
    assert lines[-1].startswith("second:x | done in ")
    assert len(list((project.root / "artifacts/logs/second-x").glob("*.log"))) == 2
    project.doit(env=LAZY)
    assert project.outcomes()["second:x"] == "skipped"


def test_what_it_needs_itself_is_made_first_too(project: Looking) -> None:
    for name in ("first:x", "third:x"):
        (project.root / f"artifacts/out/{name}.txt").unlink()
    assert project.doit("third", env=BOTH).code == 0
    assert project.happened() == ["restore first:x", "run second:x", "run third:x"]
    assert project.outcomes() == {"first:x": "restored", "second:x": "ran", "third:x": "ran"}


def test_a_result_that_is_restored_needs_nothing_that_is_gone(project: Looking) -> None:
    (project.root / "dodo.py").write_text(
        (project.root / "dodo.py").read_text().replace('"!", "second:x")', '"!", "second:x", restorable=True)')
    )
    (project.root / "artifacts/out/third:x.txt").unlink()
    assert project.doit("third", env=LAZY).code == 0
    assert project.happened() == ["restore third:x"]
    assert project.outcomes()["second:x"] == "later"
    for path in (*(project.root / "artifacts/store").iterdir(), project.root / "artifacts/out/third:x.txt"):
        path.unlink()
    assert project.doit("third", env=LAZY).code == 0
    assert project.happened() == ["run second:x", "run third:x"]


def test_if_it_comes_out_differently_its_reader_is_decided_again(project: Looking) -> None:
    (project.root / "artifacts/out/third:x.txt").unlink()
    done = project.doit("third", "-v", "2", env={**LAZY, "TOY_DIFFER": "second:x"})
    assert done.code == 0, done.out
    assert "third:x | what it needs came out differently when it was made again" in done.out
    assert "third:x | because upstream:second:x: " in done.out
    assert project.happened() == ["run second:x", "run third:x"]
    assert project.text("second:x") == "HELLO differently"
    assert project.text("third:x") == "HELLO differently!"
    assert len(project.records("third:x")) == 2


def test_if_it_fails_its_reader_does_not_run(project: Looking) -> None:
    (project.root / "artifacts/out/third:x.txt").unlink()
    done = project.doit("third", env={**LAZY, "TOY_FAIL": "second:x"})
    assert done.code == 1
    assert project.outcomes() == {"first:x": "skipped", "second:x": "failed", "third:x": "blocked"}
    assert "third:x | not run: a task that it needs failed" in done.out


def test_a_single_task_that_has_to_run_has_it_made_too(project: Looking) -> None:
    (project.root / "artifacts/out/third:x.txt").unlink()
    assert project.doit("-s", "third:x", env=LAZY).code == 0
    assert project.happened() == ["run second:x", "run third:x"]


def test_an_edited_input_runs_it_as_any_other_task(project: Looking) -> None:
    project.params({"size": 1}, {"colour": "red"})
    project.doit(env=LAZY)
    assert project.happened() == ["run second:x"]


def test_the_looking_commands_say_that_it_is_not_needed_until_it_is(project: Looking) -> None:
    def states(*words: str) -> dict[str, str]:
        return {entry["task"]: entry.get("state") or entry["action"] for entry in look(*words)}

    def look(*words: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = project.json(*words, env=LAZY)["tasks"]
        return found

    for words in (("status",), ("plan", "third"), ("graph",), ("why", "third")):
        assert states(*words)["second:x"] == "later"
    assert states("plan", "second")["second:x"] == "run"
    assert "second:x  not needed" in project.doit("status", env=LAZY).out
    assert "nothing to do" in project.doit("plan", "third", env=LAZY).out
    assert "second:x, upstream has a result, and would make what is gone" in project.doit("why", "third", env=LAZY).out
    (project.root / "artifacts/out/third:x.txt").unlink()
    assert states("plan", "third") == {"first:x": "skip", "second:x": "run", "third:x": "run"}


def test_two_readers_at_once_have_it_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    graph = Graph(tmp_path)
    both = threading.Barrier(2, timeout=20)

    def lazy(run: Run) -> Outputs:
        made.append("lazy")
        (tmp_path / "made").write_text("x")
        return {"path": "made"}

    def reader(run: Run) -> Outputs:
        made.append("reader")
        return {"read": (tmp_path / "made").read_text()}

    def there(outputs: Outputs) -> tuple[Claim, ...]:
        return (Claim(kind="there", what=outputs),)

    graph.world.register("there", lambda claim: None if (tmp_path / "made").exists() else "it is gone")
    graph.add(Task(name="lazy", doc="", inputs=Inputs(), run=lazy, world=there, lazy=True))
    for name in ("a", "b"):
        graph.add(Task(name=name, doc="", inputs=Inputs(), needs=("lazy",), run=reader, world=lambda _: ()))
    runner = Runner(graph, PlainScreen(verbosity=-1), asked=())
    assert runner.attempt("lazy").end is End.RAN
    (tmp_path / "made").unlink()
    assert runner.attempt("lazy").end is End.LATER
    ends: list[End] = []

    def attempt(name: str) -> None:
        both.wait()
        outcome = runner.attempt(name)
        ends.extend(one.end for one in (*outcome.before, outcome))

    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["lazy", "lazy", "reader", "reader"]
    assert ends == [End.RAN] * 3


class Diamond:
    """A lazy base that a lazy middle and a top need: both would make it, when both are gone."""

    def __init__(self, root: Path, *, fails: bool) -> None:
        self.root, self.fails = root, fails
        self.happened: list[str] = []
        self.graph = Graph(root)
        for kind in ("base", "middle"):
            self.graph.world.register(kind, lambda claim: None if (root / claim.kind).exists() else "it is gone")
        self._add("base", self._base, lazy=True)
        self._add("middle", self._middle, "base", lazy=True)
        self._add("top", self._top, "base", "middle", lazy=False)

    def _add(self, name: str, run: Callable[[Run], Outputs], *needs: str, lazy: bool) -> None:
        def world(_outputs: Outputs) -> tuple[Claim, ...]:
            return (Claim(kind=name, what={}),) if lazy else ()

        self.graph.add(Task(name=name, doc="", inputs=Inputs(), needs=needs, run=run, world=world, lazy=lazy))

    def _base(self, _run: Run) -> Outputs:
        self.happened.append("base")
        if "lost" in self.happened:
            time.sleep(0.5)  # so that the other wants it too
            if self.fails:
                raise TandemError("it did not work")
        (self.root / "base").touch()
        return {}

    def _middle(self, _run: Run) -> Outputs:
        self.happened.append("middle")
        (self.root / "middle").touch()
        return {}

    def _top(self, _run: Run) -> Outputs:
        self.happened.append("top")
        return {"there": [(self.root / name).exists() for name in ("base", "middle")]}

    def again(self) -> Outcome:
        """Have all of it, then lose what is lazy, and have the top made again."""
        runner = Runner(self.graph, PlainScreen(verbosity=-1), asked=())
        for name in ("base", "middle"):
            assert runner.attempt(name).end is End.RAN
        for name in ("base", "middle"):
            (self.root / name).unlink()
        self.happened = ["lost"]
        self.graph.results.clear()
        runner = Runner(self.graph, PlainScreen(verbosity=-1), asked=(), side_by_side=2)
        return runner.attempt("top")


def test_a_run_does_not_wait_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_LOCK_TIMEOUT", "0")
    diamond = Diamond(tmp_path, fails=False)
    outcome = diamond.again()
    assert outcome.end is End.RAN
    assert outcome.outputs == {"there": [True, True]}
    assert diamond.happened[1:] == ["base", "middle", "top"]
    assert [(one.task, one.end) for one in outcome.before] == [("base", End.RAN), ("middle", End.RAN)]


def test_what_failed_for_one_is_not_tried_again_for_another(tmp_path: Path) -> None:
    diamond = Diamond(tmp_path, fails=True)
    outcome = diamond.again()
    assert outcome.end is End.BLOCKED
    assert diamond.happened[1:] == ["base"]
    assert {(one.task, one.end) for one in outcome.before} == {("base", End.FAILED), ("middle", End.BLOCKED)}
