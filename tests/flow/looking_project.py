"""The toy project with every command, without an engine, and with git when a test asks for it."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.procs import capture
from tests.flow.project import NO_BYTECODE, REPOSITORY, Project, own_memory

NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
CONFIGURED = """

from pipeline.graph.graph import Configuration


def _configured(root):
    graph = Graph(root)
    params = json.loads((root / "params.json").read_text())
    for name in GRAPH.tasks:
        graph.add(toy(name, Inputs(params=params.get(name.removesuffix(":x"), {})), _first))
    return graph


GRAPH.configuration = Configuration(paths=("params.json", "conf"), graph=_configured)
"""


class Looking(Project):
    """A toy project in which every command of doit works."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        shutil.copytree(REPOSITORY / "pipeline", root / "pipeline", dirs_exist_ok=True, ignore=NO_BYTECODE)
        own_memory(root)

    def start(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "doit"),
    ) -> Any:
        """Start doit, out of reach of this machine's engine."""
        return super().start(*args, env={**NO_ENGINE, **(env or {})}, prefix=prefix, program=program)

    def json(self, *args: str, env: Mapping[str, str] | None = None) -> Any:
        """What a command answers with --json; nothing else may be on its stdout."""
        done = self.doit(*args, "--json", env=env)
        assert done.code == 0, done.err
        return json.loads(done.out)

    def tasks(self, *args: str) -> dict[str, Any]:
        """The tasks of such an answer by name."""
        return {entry["task"]: entry for entry in self.json(*args)["tasks"]}

    def words(self, *args: str, code: int = 0) -> str:
        """What a command prints."""
        done = self.doit(*args)
        assert done.code == code, done.out + done.err
        return done.out

    def refusal(self, *args: str, code: int) -> str:
        """The message and hint of a command that fails."""
        done = self.doit(*args)
        assert done.code == code, done.out + done.err
        assert done.out == ""
        assert "Traceback" not in done.err
        return done.err

    def git(self, *words: str) -> str:
        """Run git in the project."""
        identity = ("-c", "user.name=toy", "-c", "user.email=toy@localhost", "-c", "commit.gpgsign=false")
        return capture(["git", "-C", os.fspath(self.root), *identity, *words])

    def commit(self) -> "Looking":
        """Put everything but results under git."""
        self.write(".gitignore", "/artifacts/\n__pycache__/\nhappened.txt\nsecret.json\n")
        if not (self.root / ".git").exists():
            self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "toy")
        return self

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Every file but bytecode and the cache of stats, with its time and size."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if "__pycache__" not in name and not name.startswith(("artifacts/cache", ".git")) and not path.is_dir():
                status = path.lstat()
                found[name] = (status.st_mtime_ns, status.st_size)
        return found


def read_only(project: Project) -> tuple[str, ...]:
    """What to put before a command so that it sees the project mounted read-only: root may write to anything else."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
    return ("unshare", "-rm", "sh", "-c", mount, os.fspath(project.root))
