"""The dodo.py of a toy project: four tasks of the real graph, which copy text, for whole runs of doit.

first:x → second:x (keeps the first line only) → third:x, and other:x on its own. What the environment asks for
in TOY_* happens while a task runs.
"""

import errno
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.core import errors, procs
from pipeline.core.log import step
from pipeline.graph.graph import Graph
from pipeline.graph.run.doit_adapter import errors_for_doit, to_doit
from pipeline.graph.task import Claim, Inputs, Outputs, Run, Task

ROOT = Path(__file__).parent
GRAPH = Graph(ROOT)
OUT = ROOT / "artifacts" / "out"
STORE = ROOT / "artifacts" / "store"
GRAPH.tools.register("clock", lambda: os.environ.get("TOY_TOOL", "clock 1"))
GRAPH.world.register(
    "lamp", lambda claim: "the lamp is off" if (ROOT / f"lamp-off-{claim.what['name']}").exists() else None
)


def main() -> None:
    """Read the configuration and make the tasks."""
    if os.environ.get("TOY_CONFIG_ERROR"):
        raise errors.ConfigError("toy.yaml: line 3: unknown key 'imgae'", hint="did you mean 'image'?")
    params = json.loads((ROOT / "params.json").read_text())
    first = Inputs(
        files=("in.txt", "src/**", "shared.txt"), params=params["first"], tools=("clock",), code=("pipeline.toy",),
    )  # fmt: skip
    GRAPH.add(
        toy("first:x", first, _first, restorable=True),
        toy("second:x", Inputs(params=params["second"]), lambda run: _text(run, "first:x").split("\n")[0], "first:x"),
        toy("third:x", Inputs(), lambda run: _text(run, "second:x") + "!", "second:x"),
        toy("other:x", Inputs(files=("other.txt",)), lambda _run: (ROOT / "other.txt").read_text()),
    )


def toy(name: str, inputs: Inputs, make: Callable[[Run], str], *needs: str, restorable: bool = False) -> Task:
    """A task that makes a text, and keeps it in a file of its own and in a store by hash."""

    def work(run: Run) -> Outputs:
        note(f"run {name}")
        with step(run.log, f"making {name}"):
            misbehave(name, run)
            text = make(run) + (" differently" if os.environ.get("TOY_DIFFER") == name else "")
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        kept = run.scratch / "text"
        with kept.open("w") as file:
            for letter in text:
                file.write(letter)
                time.sleep(float(os.environ.get("TOY_SLOW", "0")))
        STORE.mkdir(parents=True, exist_ok=True)
        kept.replace(STORE / sha256)
        place(name, sha256)
        return {"path": f"artifacts/out/{name}.txt", "sha256": sha256}

    def restore(_run: Run, outputs: Outputs) -> None:
        if not (STORE / str(outputs["sha256"])).exists():
            raise errors.TandemError("not in the store any more")
        note(f"restore {name}")
        place(name, str(outputs["sha256"]))

    return Task(
        name=name, doc=f"make {name}", inputs=inputs, needs=needs, run=work,
        world=lambda out: (
            Claim(kind="file", what={"path": out["path"], "sha256": out["sha256"]}),
            Claim(kind="lamp", what={"name": name}),
        ),
        summary=(lambda out: f"kept at {out['path']}") if name == "other:x" else None,
        restore=restore if restorable else None, lazy=name in os.environ.get("TOY_LAZY", "").split(),
    )  # fmt: skip


def place(name: str, sha256: str) -> None:
    """Put a copy of a stored text where the task's result belongs."""
    OUT.mkdir(parents=True, exist_ok=True)
    temporary = OUT / f".{name}"
    temporary.write_bytes((STORE / sha256).read_bytes())
    temporary.replace(OUT / f"{name}.txt")


def note(text: str) -> None:
    """Say to the test what really happened."""
    with (ROOT / "happened.txt").open("a") as file:
        file.write(text + "\n")


def misbehave(name: str, run: Run) -> None:
    """Do what TOY_<DEED>=<task>[=<value>] asks for."""
    for deed, act in DEEDS.items():
        asked, _, value = os.environ.get(f"TOY_{deed}", "").partition("=")
        if asked == name:
            act(value, run)


def _first(run: Run) -> str:
    shout = importlib.import_module("pipeline.toy").shout
    text = (ROOT / "in.txt").read_text()
    run.log.line(f"read {len(text)} letters")
    return str(shout(text)) + "\n" + "".join(sorted(ascii(path.name) for path in (ROOT / "src").glob("**/*")))


def _text(run: Run, task: str) -> str:
    return (ROOT / str(run.upstream[task]["path"])).read_text()


def _fail(value: str, run: Run) -> None:
    kinds: dict[str, type[errors.TandemError]] = {
        "config": errors.ConfigError, "host": errors.HostError, "busy": errors.BusyError,
    }  # fmt: skip
    if value == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "artifacts/big")
    if value == "bug":
        raise ZeroDivisionError("a bug of the stage")
    run.log.line("the last line before it failed")
    raise kinds.get(value, errors.TandemError)("it did not work", hint="try it differently")


def _edit(value: str, _run: Run) -> None:
    (ROOT / value).write_text("edited meanwhile")


def _program(value: str, run: Run) -> None:
    try:
        procs.run(["sleep", value], log=run.log)
    finally:
        note("cleaned up")


def _nest(value: str, run: Run) -> None:
    procs.run(value.split(), log=run.log)


def _wait(value: str, run: Run) -> None:
    note("waiting")
    end = time.monotonic() + float(value)
    while time.monotonic() < end and not (ROOT / "go").exists():
        run.log.progress("waiting for go", 1, None, "s")
        time.sleep(0.02)


def _chatter(value: str, run: Run) -> None:
    for i in range(int(value)):
        run.log.line(f"line {i} of many")
        run.log.progress("talking", i, float(value), "lines")
        time.sleep(0.001)


def _print(value: str, _run: Run) -> None:
    sys.stdout.write(value + "\n")


DEEDS: dict[str, Callable[[str, Run], Any]] = {
    "FAIL": _fail, "EDIT": _edit, "PROGRAM": _program, "WAIT": _wait, "CHATTER": _chatter, "PRINT": _print,
    "NEST": _nest,
}  # fmt: skip

with errors_for_doit():
    main()


def task_first() -> Iterator[dict[str, Any]]:
    """Make the first text."""
    yield from to_doit(GRAPH, "first")


def task_second() -> Iterator[dict[str, Any]]:
    """Make the second text."""
    yield from to_doit(GRAPH, "second")


def task_third() -> Iterator[dict[str, Any]]:
    """Make the third text."""
    yield from to_doit(GRAPH, "third")


def task_other() -> Iterator[dict[str, Any]]:
    """Make the other text."""
    yield from to_doit(GRAPH, "other")
