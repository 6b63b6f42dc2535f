"""One real deploy, in a copy of the checkout, for all tests of this folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.errors import ImageNotFound

from pipeline.cluster.nodes import remove_cluster
from pipeline.host import engine
from tests import stored
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
CLUSTER = f"e2e-{os.getpid()}"
"""Of this run alone: another checkout's tests may run at the same time."""


@dataclass(frozen=True)
class Project:
    """A copy of the checkout whose default cluster has a name, ports and a registry of its own."""

    root: Path
    port: int
    registry: str

    def doit(self, *words: str, within: float = 3000) -> subprocess.CompletedProcess[str]:
        """Run doit in the copy, its output passed through and kept."""
        argv = [sys.executable, "-m", "doit", *words]
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        print("$ doit", *words, flush=True)
        with subprocess.Popen(
            argv, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                print(line, end="", flush=True)
            status = process.wait(within)
        return subprocess.CompletedProcess(argv, status, "".join(lines))

    def ends(self) -> dict[str, str]:
        """How each task of the last run ended, by name."""
        report = json.loads((self.root / "artifacts" / "report.json").read_text())
        return {task["task"]: task["outcome"] for task in report["tasks"]}

    def plan(self) -> dict[str, str]:
        """What `deploy` would do now: each task's action by name."""
        answer = self.doit("plan", "deploy", "--json")
        assert answer.returncode == 0
        plan: Any = json.loads(answer.stdout)
        return {task["task"]: task["action"] for task in plan["tasks"]}

    def record(self, task: str) -> Any:
        """The outputs that a task last recorded."""
        folder = self.root / "artifacts" / "records" / task.replace(":", "-")
        newest = max(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        return json.loads(newest.read_text())["outputs"]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("e2e") / "checkout"
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_symlink() or source.is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name, follow_symlinks=False)
    made = Project(root, free_port(), f"127.0.0.1:{free_port()}")
    cluster = yaml.safe_load((ROOT / "pipeline.yaml").read_text())["clusters"]["local"]
    local = {
        "default": CLUSTER,
        "registry": {"address": made.registry},
        "clusters": {CLUSTER: {**cluster, "serve": {**cluster["serve"], "port": made.port}}},
    }
    (root / "pipeline.local.yaml").write_text(yaml.safe_dump(local))
    before = stored.names(engine.client())
    try:
        yield made
    finally:
        client = engine.client()
        remove_cluster(client, CLUSTER)
        remove_cluster(client, f"{CLUSTER}-reference")
        stored.remove_registry(made.registry, volume=True)
        records = "".join(file.read_text() for file in (root / "artifacts" / "records").rglob("*.json"))
        for name, digest in stored.names(client).items():
            if name not in before and digest in records:
                with suppress(ImageNotFound):  # the last tag may have taken a name by digest with it
                    client.images.remove(name)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def deployed(project: Project) -> Project:
    """The copy after `doit deploy` has ended well."""
    answer = project.doit("deploy")
    assert answer.returncode == 0, answer.stdout[-3000:]
    return project
