"""Large graphs: the work grows with the number of tasks, not with its square, and no thread or stack grows with it."""

import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import FrameType

import pytest

from pipeline.core.errors import ConfigError
from pipeline.graph.decide import State, decide_all
from pipeline.graph.garbage import find_garbage
from pipeline.graph.graph import Graph
from pipeline.graph.records import Record
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.task import Claim, Inputs, Outputs, Task
from pipeline.graph.world import LOOKUP_THREADS, World

LAYERS = 35


def task(name: str, *needs: str, code: tuple[str, ...] = ()) -> Task:
    return Task(name=name, doc="", inputs=Inputs(code=code), needs=needs, run=lambda _run: {}, world=claims_of)


def claims_of(outputs: Outputs) -> tuple[Claim, ...]:
    layers = outputs.get("layers", [])
    assert isinstance(layers, list)
    return tuple(Claim(kind="file", what={"path": path, "sha256": ""}) for path in layers)


def count_calls(work: Callable[[], object]) -> int:
    """Returns how many functions of Python a piece of work calls: what it costs, on every machine alike."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_to_add_a_task_costs_the_same_however_many_there_are(tmp_path: Path) -> None:
    graph = Graph(tmp_path)
    first = count_calls(lambda: graph.add(task("first")))
    graph.add(*(task(f"t{i}") for i in range(1000)))
    assert count_calls(lambda: graph.add(task("last"))) <= first


def test_a_chain_of_5000_tasks_is_put_in_order(tmp_path: Path) -> None:
    graph = Graph(tmp_path)
    graph.add(task("t0"), *(task(f"t{i}", f"t{i - 1}") for i in range(1, 5000)))
    assert graph.order(["t4999"]) == graph.order() == [f"t{i}" for i in range(5000)]


def test_a_circle_behind_a_long_chain_is_named_without_the_chain(tmp_path: Path) -> None:
    graph = Graph(tmp_path)
    graph.add(*(task(f"t{i}", f"t{i + 1}") for i in range(5000)), task("t5000", "t4999"))
    with pytest.raises(ConfigError, match=r"^tasks wait for each other: t4999 → t5000 → t4999$"):
        graph.order(["t0"])


def test_1000_claims_are_asked_about_by_a_few_threads(tmp_path: Path) -> None:
    world = World(tmp_path, StatCache(tmp_path / "stats.json"))
    everyone = threading.Event()
    most, lock = 0, threading.Lock()

    def ask(_claim: Claim) -> str | None:
        nonlocal most
        with lock:
            most = max(most, threading.active_count())
        everyone.wait(0.01)
        return None

    world.register("node", ask)
    before = threading.active_count()
    claims = [Claim(kind="node", what={"node": i}) for i in range(1000)]
    world.prefetch(claims)
    assert world.broken(claims) == []
    assert most <= before + LOOKUP_THREADS


def test_tasks_of_the_same_code_look_at_it_once(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    for i in range(40):
        (tmp_path / f"pipeline/m{i}.py").write_text(f"from pipeline import m{(i + 1) % 40}\n")

    def decided(number: int) -> int:
        graph = Graph(tmp_path)
        graph.add(*(task(f"t{i}", code=("pipeline.m0",)) for i in range(number)))
        return count_calls(lambda: decide_all(graph))

    decided(1)  # parses
    one, hundred, two_hundred = decided(1), decided(100), decided(200)
    assert two_hundred - hundred < 100 * one / 2
    assert {decision.state for decision in decide_all(graph_of(tmp_path)).values()} == {State.RUN}


def graph_of(root: Path) -> Graph:
    graph = Graph(root)
    graph.add(task("a", code=("pipeline.m0",)))
    return graph


@pytest.mark.parametrize("folders", [True, False], ids=["in folders", "single files"])
def test_artifacts_are_sorted_out_in_time_that_grows_with_their_number(tmp_path: Path, folders: bool) -> None:
    def sorted_out(images: int) -> tuple[int, int]:
        graph = Graph(tmp_path / str(images))
        for image in range(images):
            graph.add(task(f"wheels:{image}"))
            for record in range(3):
                graph.records.write(recorded(graph, f"wheels:{image}", record, folders=folders))
        (graph.artifacts / "wheels" / "unclaimed").mkdir()
        items, _ = find_garbage(graph, 3, set())
        assert [Path(item.name).name for item in items] == ["unclaimed"]
        return images, count_calls(lambda: find_garbage(graph, 3, set()))

    (few, cost), (many, more) = sorted_out(5), sorted_out(20)
    assert more / many < 1.2 * cost / few


def recorded(graph: Graph, name: str, number: int, *, folders: bool) -> Record:
    """A record of a task whose claims are layers: 35 in a folder of its own, or each by itself."""
    digest = sha256(f"{name} {number}".encode()).hexdigest()[:20]
    paths: list[Path] = []
    for layer in range(LAYERS if folders else 3):
        path = graph.artifacts / "wheels" / (f"{digest}/{layer}.tar" if folders else f"{digest}-{layer}.tar")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        paths.append(path.relative_to(graph.root))
    outputs: Outputs = {"layers": [str(path) for path in paths], "number": number}
    return Record(task=name, fingerprint=f"{number:064}", inputs={}, outputs=outputs)
