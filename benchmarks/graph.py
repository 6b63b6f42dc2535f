"""What the graph itself costs: no-ops with many files and many tasks, and the overhead of each task that runs.

usage: .venv/bin/python benchmarks/graph.py [--rounds N]

A toy project of the tests, in a temporary folder; an interpreter that does nothing is measured in the same rounds. The
tasks of the large graph consist of the code of this checkout's image builds, each with a result that claims layers.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.core import procs  # noqa: E402  # the checkout is not installed
from pipeline.graph.decide import State, decide_all  # noqa: E402
from pipeline.graph.garbage import find_garbage  # noqa: E402
from pipeline.graph.graph import Graph  # noqa: E402
from pipeline.graph.records import Record  # noqa: E402
from pipeline.graph.task import Claim, Inputs, Outputs, Task  # noqa: E402
from tests.flow.project import Project  # noqa: E402

FILES = 10_000
TASKS = 1_000
IMAGES, RECORDS, LAYERS = 50, 3, 35


def seconds(work: Callable[[], object]) -> float:
    """Returns how long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def overhead(project: Project) -> float:
    """Returns the milliseconds a task that a run of all tasks, which copy a line of text, costs over a run of none."""
    for folder in ("records", "out", "store"):
        procs.capture(["rm", "-rf", str(project.root / "artifacts" / folder)])
    every = seconds(lambda: project.doit())
    none = seconds(lambda: project.doit())
    return (every - none) / len(project.outcomes()) * 1000


def large_graph(artifacts: Path, tasks: int, layers: int) -> Graph:
    """Returns a graph of this checkout's code; each task needs the one before it, ten times in a row."""
    graph = Graph(ROOT, artifacts)

    def claims(outputs: Outputs) -> tuple[Claim, ...]:
        paths = (f"{artifacts}/wheels/{outputs['digest']}/{layer}" for layer in range(layers))
        return tuple(Claim(kind="file", what={"path": path, "sha256": "0"}) for path in paths)

    for number in range(tasks):
        code = (("pipeline.image.build", "pipeline.image.wheels", "pipeline.lock.lock")[number % 3],)
        graph.add(
            Task(
                name=f"task:{number}",
                doc="",
                inputs=Inputs(files=("dodo.py", "dockerfiles/cpu"), params={"number": number}, code=code),
                needs=(f"task:{number - 1}",) if number % 10 else (),
                run=lambda _run: {},
                world=claims,
            )
        )
    return graph


def record_all(graph: Graph, times: int = 1) -> None:
    """Write results of all tasks, the last of which has today's inputs."""
    for name in graph.tasks:
        for number in range(times):
            decision = decide_all(graph, [name])[name]
            fingerprint = (number == times - 1 and decision.fingerprint) or f"{number:064}"
            outputs: Outputs = {"digest": f"{name}-{number}"}
            graph.records.write(Record(task=name, fingerprint=fingerprint, inputs=decision.inputs, outputs=outputs))


def decided(artifacts: Path) -> float:
    """Returns the seconds that it takes to decide all tasks of a large graph, none of which has to run."""
    graph = large_graph(artifacts, TASKS, 0)
    taken = seconds(lambda: decide_all(graph))
    assert {decision.state for decision in decide_all(graph).values()} == {State.SKIP}
    return taken


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        small, large = Project(Path(folder) / "small").fresh(), Project(Path(folder) / "large")
        for number in range(FILES):
            large.write(f"src/{number % 100}/{number}.txt", str(number))
        large.fresh()
        tasks, images = Path(folder) / "tasks", Path(folder) / "images"
        record_all(large_graph(tasks, TASKS, 0))
        collected = large_graph(images, IMAGES, LAYERS)
        record_all(collected, RECORDS)
        ways: dict[str, Callable[[], object]] = {
            "python3 -c pass": lambda: procs.capture([sys.executable, "-c", "pass"]),
            "no-op of 4 tasks": lambda: small.doit(),
            f"no-op with {FILES:,} input files": lambda: large.doit(),
            f"gc of {IMAGES} × {RECORDS} × {LAYERS} layers": lambda: find_garbage(collected, RECORDS, ()),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        many = f"{TASKS:,} tasks decided"
        taken[many] = []
        costs = []
        for _ in range(rounds):
            for way, work in ways.items():
                taken[way].append(seconds(work))
            taken[many].append(decided(tasks))
            costs.append(overhead(small))
    for way, found in taken.items():
        print(f"{way:32}  median {statistics.median(found):.3f} s  least {min(found):.3f} s")
    print(f"{'overhead of an executed task':32}  median {statistics.median(costs):.1f} ms  least {min(costs):.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
