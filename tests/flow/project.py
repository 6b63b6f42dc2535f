"""A toy project on the real graph, and whole runs of doit in it."""

import json
import os
import shutil
import signal
import subprocess  # doit itself is what is tested, with signals and kills
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
STAGE = '''"""A stage."""

def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()  # a comment
'''
NO_BYTECODE = shutil.ignore_patterns("__pycache__")
PARTS = (
    "__init__.py",
    "core",
    "graph",
    "commands/__init__.py",
    "commands/base.py",
    "commands/failures.py",
    "commands/run.py",
    "commands/builtin.py",
)
ALL = ("first:x", "second:x", "third:x", "other:x")


@dataclass(frozen=True)
class Done:
    """How a run of doit ended."""

    code: int
    out: str
    err: str


class Project:
    """A copy of the toy project."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for part in PARTS:
            target = root / "pipeline" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            source = REPOSITORY / "pipeline" / part
            shutil.copytree(source, target, ignore=NO_BYTECODE) if source.is_dir() else shutil.copy2(source, target)
        shutil.copy2(REPOSITORY / "pyproject.toml", root)
        shutil.copy2(Path(__file__).with_name("toy_dodo.py"), root / "dodo.py")
        self.write("pipeline/toy.py", STAGE)
        self.write("in.txt", "hello")
        self.write("src/a.txt", "a")
        self.write("shared.txt", "shared")
        self.write("other.txt", "other")
        self.params({"size": 1})

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def params(self, first: Mapping[str, Any], second: Mapping[str, Any] | None = None) -> None:
        """Set the configuration that the tasks read."""
        self.write("params.json", json.dumps({"first": first, "second": second or {}}))

    def start(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "doit"),
    ) -> Any:
        """Start doit."""
        # With bytecode: hundreds of runs need not compile the same source again.
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TOY", "TANDEM", "PYTHONDONTWRITE"))}
        return subprocess.Popen(
            [*prefix, sys.executable, *program, *args],
            cwd=self.root,
            env={**clean, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def doit(
        self, *args: str, env: Mapping[str, str] | None = None, within: float = 60, prefix: tuple[str, ...] = ()
    ) -> Done:
        """Run doit to its end."""
        return ended(self.start(*args, env=env, prefix=prefix), within)

    def happened(self) -> list[str]:
        """What the tasks did since this was last asked."""
        file = self.root / "happened.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def outcomes(self) -> dict[str, str]:
        """How each task of the last run ended, by its report."""
        return {entry["task"]: entry["outcome"] for entry in self.report()["tasks"]}

    def report(self) -> Any:
        """The report of the last run."""
        return json.loads((self.root / "artifacts" / "report.json").read_text())

    def text(self, task: str) -> str:
        """A task's result."""
        return (self.root / "artifacts" / "out" / f"{task}.txt").read_text()

    def records(self, task: str) -> list[Path]:
        """A task's records."""
        return sorted((self.root / "artifacts" / "records" / task.replace(":", "-")).glob("*.json"))

    def fresh(self) -> "Project":
        """Run everything once, and forget what happened."""
        done = self.doit()
        assert done.code == 0, done.out + done.err
        self.happened()
        return self


def ended(process: Any, within: float = 60) -> Done:
    """Wait for a run that was started."""
    try:
        out, err = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"doit did not end within {within} s:\n{out}\n{err}") from None
    return Done(process.returncode, out, err)


def own_memory(root: Path) -> None:
    """Have a copy of the pipeline use a folder of its own where the original uses /dev/shm."""
    file = root / "pipeline/core/scratch.py"
    text = file.read_text()
    assert '"/dev/shm"' in text
    file.write_text(text.replace('"/dev/shm"', repr(str(root / "memory"))))


def again_until_it_ends(process: Any, within: float = 30) -> None:
    """Tell a run to end, again and again: two signals before it hears the first are one."""
    end = time.monotonic() + within
    while process.poll() is None:
        assert time.monotonic() < end, "it goes on"
        process.terminate()
        time.sleep(0.5)


def wait_for(condition: Any, within: float = 60) -> None:
    """Wait until something that a run does can be seen."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
