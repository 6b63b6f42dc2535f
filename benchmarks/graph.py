"""What the graph itself costs: a no-op with 10,000 input files, and the overhead of each task that runs.

usage: .venv/bin/python benchmarks/graph.py [--rounds N]

A toy project of the tests, in a temporary folder; an interpreter that does nothing is measured in the same rounds.
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
from tests.flow.project import Project  # noqa: E402

FILES = 10_000


def seconds(work: Callable[[], object]) -> float:
    """How long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def overhead(project: Project) -> float:
    """Milliseconds a task that a run of all tasks costs over a run of none; the toy tasks copy a line of text."""
    for folder in ("records", "out", "store"):
        procs.capture(["rm", "-rf", str(project.root / "artifacts" / folder)])
    every = seconds(lambda: project.doit())
    none = seconds(lambda: project.doit())
    return (every - none) / len(project.outcomes()) * 1000


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
        ways: dict[str, Callable[[], object]] = {
            "python3 -c pass": lambda: procs.capture([sys.executable, "-c", "pass"]),
            "no-op of 4 tasks": lambda: small.doit(),
            f"no-op with {FILES:,} input files": lambda: large.doit(),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        costs = []
        for _ in range(rounds):
            for way, work in ways.items():
                taken[way].append(seconds(work))
            costs.append(overhead(small))
    for way, found in taken.items():
        print(f"{way:32}  median {statistics.median(found):.3f} s  least {min(found):.3f} s")
    print(f"{'overhead of an executed task':32}  median {statistics.median(costs):.1f} ms  least {min(costs):.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
