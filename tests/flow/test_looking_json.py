"""docs/commands.md says what every --json holds."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster.nodes import ContainerState
from pipeline.commands import lab, ps
from pipeline.commands.advise_text import advice_json
from pipeline.foreign import combinations
from pipeline.foreign.combinations import ResolveAttempt
from pipeline.foreign.comparison import Side
from pipeline.foreign.facts import ImageFacts, InstalledDistribution, Interpreter
from pipeline.host.engine import LABEL
from pipeline.lab.lab import Machine, MachineStatus
from tests.flow.looking_project import Looking
from tests.flow.project import REPOSITORY, ended, wait_for

BLOCKS = dict(re.findall(r"```json (\w+)\n(.*?)```", (REPOSITORY / "docs/commands.md").read_text(), re.DOTALL))
SHARED = json.loads(BLOCKS.pop("shared"))
COMMANDS: dict[str, tuple[str, ...]] = {
    "why": ("why", "third"),
    "status": ("status",),
    "plan": ("plan",),
    "affected": ("affected",),
    "graph": ("graph",),
    "log": ("log", "first", "other"),
    "gc": ("gc", "--dry-run"),
    "forget": ("forget", "other"),
}
ELSEWHERE = {"host", "ps", "lab", "advise"}  # about this machine, a cluster, the lab and images, not about the graph


@pytest.fixture
def project(tmp_path: Path) -> Looking:
    return Looking(tmp_path / "toy")


def problems(value: Any, shape: Any, where: str) -> list[str]:
    """Where a value is not as documented."""
    if isinstance(shape, str):
        return (
            [] if any(fits(value, one, where) for one in shape.split(" or ")) else [f"{where}: {value!r}, not {shape}"]
        )
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [problem for i, one in enumerate(value) for problem in problems(one, shape[0], f"{where}[{i}]")]
    if not isinstance(value, dict) or set(value) != set(shape):
        return [f"{where}: {value!r} has other keys than {sorted(shape)}"]
    return [problem for key in shape for problem in problems(value[key], shape[key], f"{where}.{key}")]


def fits(value: Any, name: str, where: str) -> bool:
    """Whether a value has a type of the documentation."""
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "object":
            return isinstance(value, dict)
        case "time":
            return isinstance(value, str) and datetime.fromisoformat(value).utcoffset() is not None
        case "state":
            return value in SHARED["state"]
        case _:
            return not problems(value, SHARED[name], where)


def test_every_command_with_json_is_documented() -> None:
    assert set(BLOCKS) == set(COMMANDS) | ELSEWHERE


def test_what_host_says_is_as_documented(project: Looking) -> None:
    done = project.doit("host", "--json")
    answer = json.loads(done.out)
    assert done.code == 4  # there is no engine
    assert problems(answer, json.loads(BLOCKS["host"]), "host") == []
    assert [need["ok"] for need in answer["needs"] if need["name"] == "engine"] == [False]
    assert (
        project.refusal("host", "x", code=3) == "doit host takes no task, and there is 'x'\nhint: ./doitw help host\n"
    )


def test_what_ps_says_is_as_documented() -> None:
    labels = {f"{LABEL}.rank": "0", f"{LABEL}.digest": "sha256:1"}
    state: dict[str, Any] = {"status": "running", "exit_code": 0, "oom_killed": False, "started": "", "published": None}
    found = ContainerState(container="id", node="node0", labels=labels, **state)
    answer = ps.as_json("c", [ps.row("local", found), ps.absent("node1", "local")])
    assert problems(answer, json.loads(BLOCKS["ps"]), "ps") == []


def test_what_lab_says_is_as_documented() -> None:
    machine = Machine("spark-1", "172.20.0.2", "ssh://root@172.20.0.2", "containerd")
    for looks, path in (((MachineStatus(machine, "running", "26.1.5"),), "/c/artifacts/lab/bin"), ((), "")):
        assert problems(lab.as_json(looks, path), json.loads(BLOCKS["lab"]), "lab") == []


def test_what_advise_says_is_as_documented() -> None:
    where = Interpreter(path="/p", program="/p", version="3.12.3", kind="venv", site="/s", scripts="/b")
    vllm = InstalledDistribution(name="vllm", version="0.17.1", place="/s")
    table = {"QwenForCausalLM": "qwen:QwenForCausalLM"}
    fixed: dict[str, Any] = {"digest": "sha256:0", "platform": "linux/arm64", "glibc": 36, "python": where}
    one, other = (
        Side(f"{name}@sha256:0", ImageFacts(**fixed, distributions=(vllm,), architectures=known))
        for name, known in (("one", table), ("other", {}))
    )
    tried = {one.reference: ResolveAttempt(added=("ray 2.54.1",))}
    found = combinations.judge_combinations(one, other, tuple(table), tried, None, "/workspace/vllm")
    assert problems(advice_json(one, other, tuple(table), found, ""), json.loads(BLOCKS["advise"]), "advise") == []


def test_what_json_holds_is_what_the_documentation_says(project: Looking) -> None:
    for i in range(5):
        project.write("other.txt", f"{i}")
        project.doit("other")
    project.commit().fresh()
    project.write("in.txt", "changed")
    project.write("lamp-off-other:x", "")
    (project.root / "src/a.txt").unlink()
    process = project.start("other", env={"TOY_WAIT": "other:x=60"})
    wait_for(lambda: "waiting" in "".join(project.happened()))
    try:
        for name, words in COMMANDS.items():
            answer = project.json(*words)
            assert problems(answer, json.loads(BLOCKS[name]), name) == []
            lists = [value for value in answer.values() if isinstance(value, list)]
            assert any(lists), f"{name} shows nothing, which proves nothing"
    finally:
        project.write("go", "")
        ended(process)


def test_a_listed_log_is_as_documented_without_its_lines(project: Looking) -> None:
    project.fresh()
    shape = json.loads(BLOCKS["log"])
    del shape["logs"][0]["lines"]
    assert problems(project.json("log", "first", "--list"), shape, "log") == []


def test_a_value_that_is_not_as_documented_would_be_seen() -> None:
    shape = json.loads(BLOCKS["plan"])
    assert problems({"schema": "1", "tasks": [], "seconds": 0, "more_seconds_at_most": 0}, shape, "plan")
    assert problems({"schema": 1, "tasks": [], "seconds": 0}, shape, "plan")
    assert problems({"schema": 1, "tasks": [{}], "seconds": 0, "more_seconds_at_most": 0}, shape, "plan")
