"""Check `launcher`: whether an unmodified launch-cluster.sh of any era can drive an image.

docs/launcher-contract.md 2.6 has the points that are checked.
"""

import posixpath
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pipeline.config.launcher_contract import (
    MODS_PACKAGES,
    RDMA_LIBRARIES,
    ROOT_USERS,
    SHELL_TOOLS,
    WORKSPACE,
    PointFailure,
    by_point,
    is_node_specific,
)
from pipeline.smoke.consistency import REQUIREMENTS
from pipeline.smoke.containers import INSIDE, Box, BoxError, EngineFailed, Said, Yard
from pipeline.smoke.node_script import script_faults
from pipeline.smoke.probe import ATTEMPTS, Answer, crashed
from pipeline.smoke.python import installed
from pipeline.smoke.verdict import Verdict, crash_verdict, ending, judge

NAME = "launcher"
MARK = "@@fact "
WITHIN = 300
ENTRYPOINT_WITHIN = 60
RDMA = "rdma"
WAIVED = ("earlyoom", "git", "curl", "patch")
"""The tools that smoke.without may name."""
QUESTIONS = (
    "import:vllm",
    *(f"library:{name}" for name in RDMA_LIBRARIES),
    "serve-options",
    "ray-options",
    "dashboard",
)
OF_TOOL = {**dict.fromkeys(("ray", "vllm", "python3", "git"), 6), "curl": 8, "patch": 8, "earlyoom": 9}
"""The points of the contract that ask for programs; all others are of the third."""
WRITABLE = {"/root": 3, "/tmp": 3, WORKSPACE: 5}
TOOLS = ("ray", "vllm", "python3", "git", "curl", "patch", "earlyoom")


def inspect_faults(about: Mapping[str, Any], platform: str) -> list[PointFailure]:
    """What the image's own description shows; `about` is the engine's."""
    config = about["Config"] or {}
    is_platform = f"{about['Os']}/{about['Architecture']}"
    faults = []
    if is_platform != platform:
        faults.append((1, f"the image is for {is_platform}, but image.yaml says {platform}"))
    if (config.get("User") or "") not in ROOT_USERS:
        faults.append((3, f"USER is {config['User']}: launchers write /root/.bashrc, so it must be root"))
    for entry in config.get("Env") or []:
        name = entry.partition("=")[0]
        if is_node_specific(name):
            faults.append((10, f"{entry!r} is baked into ENV: it differs from node to node, and the launcher sets it"))
    return faults


def entrypoint_faults(yard: Yard, about: Mapping[str, Any]) -> list[PointFailure]:
    """Whether an ENTRYPOINT hands over to the command it is given; the launcher of the first eras keeps it."""
    entrypoint = (about["Config"] or {}).get("Entrypoint") or []
    if not entrypoint or entrypoint == [""]:
        return []
    said = f"ENTRYPOINT {shlex.join(entrypoint)}"
    remedy = 'have none, or one that ends in exec "$@"'
    try:
        with yard.box("entrypoint", entrypoint=True) as box:
            runs = _first_process(box)
    except EngineFailed as error:
        return [(2, f"{said} cannot be tried: {error}")]
    except BoxError as error:
        return [(2, f"{said}: {error}; {remedy}")]
    return [(2, f"{said} ignores the command it is given: `sleep infinity` {runs}; {remedy}")] if runs else []


def _first_process(box: Box) -> str:
    """What `sleep infinity` became instead of the container's first process; empty if it is that."""
    deadline = time.monotonic() + ENTRYPOINT_WITHIN
    runs = ""
    while time.monotonic() < deadline:
        box.container.reload()
        state = box.container.attrs["State"]
        if not state["Running"]:
            last = " / ".join(box.output().strip().splitlines()[-2:])
            return f"ended with {ending(state['ExitCode'])} ({last})"
        top = box.top("pid,comm,args")
        name, runs = next(((name, args) for pid, name, args in top if int(pid) == state["Pid"]), ("", ""))
        # By the kernel's name too: a shell that was given the command shows it at the end of its own.
        if name == "sleep" and runs.endswith("sleep infinity"):
            return ""
        time.sleep(0.5)
    return f"became `{runs}`"


def collect(box: Box) -> tuple[dict[str, str], Said]:
    """The facts of the shell probe, asked again if the emulator crashes; and what it said last."""
    said = Said(None, "")
    for _ in range(ATTEMPTS):
        said = box.run(["bash", f"{INSIDE}/launcher_facts.sh"], within=WITHIN)
        if not said.crashed:
            break
    pairs = [line.removeprefix(MARK).split("=", 1) for line in said.text.splitlines() if line.startswith(MARK)]
    return dict(pairs), said


def verdict(
    facts: Mapping[str, str],
    said: Said,
    answers: Mapping[str, Answer],
    earlier: Sequence[PointFailure],
    workdir: str,
    without: Collection[str] = (),
) -> Verdict:
    """The verdict; `earlier` are the faults seen from outside, `without` what image.yaml does without."""
    if said.crashed:
        return crash_verdict(NAME, "launcher_facts.sh", ATTEMPTS)
    if verdict := crashed(NAME, answers, QUESTIONS):
        return verdict
    faults: list[PointFailure] = [*earlier]
    if "uid" not in facts:
        faults.append((3, f"bash does not run in the image: {said.text.strip()[-300:] or ending(said.status)}"))
    else:
        faults += [
            *_user_faults(facts, workdir),
            *_tool_faults(facts, without),
            *_path_faults(facts, answers["import:vllm"]),
        ]
        asked = answers.get(REQUIREMENTS, Answer()).value or {"python": ""}
        faults += _ray_faults(facts, installed(answers, "ray"), asked["python"])
        faults += [(4, words) for words in script_faults(facts)]
        if said.status != 0:
            faults.append((3, f"the shell probe ended with {ending(said.status)}: {said.text.strip()[-300:]}"))
    faults += _answer_faults(answers, without)
    found = "an unmodified launch-cluster.sh of any era can drive it"
    words = [words for _, words in faults]
    return judge(NAME, words, f"{found}, without {', '.join(without)}" if without else found, by_point(faults))


def _user_faults(facts: Mapping[str, str], workdir: str) -> Iterator[PointFailure]:
    if facts["uid"] != "0":
        yield 3, f"commands run as user {facts['uid']}, not as root"
    if facts["home"] != "/root":
        yield 3, f"HOME is {facts['home'] or 'not set'}, not /root, whose .bashrc launchers read: set it in env:"
    if facts["workdir"] != workdir:
        yield 4, f"WORKDIR is {facts['workdir']}, but image.yaml says {workdir}"
    folders = [name.removeprefix("writable:") for name, value in facts.items() if name.startswith("writable:")]
    for folder in folders:
        if facts[f"writable:{folder}"] != "yes":
            yield WRITABLE.get(folder, 4), f"{folder} is missing or cannot be written to"


def _tool_faults(facts: Mapping[str, str], without: Collection[str]) -> Iterator[PointFailure]:
    for tool in (*SHELL_TOOLS, *TOOLS):
        if not facts.get(f"tool:{tool}") and tool not in without:
            remedy = f", or say smoke: {{without: [{tool}]}}" if tool in WAIVED else ""
            words = f"{tool} is not on the PATH of `docker exec … bash -c`: add it, or its folder to PATH in env:"
            yield OF_TOOL.get(tool, 3), words + remedy
    if not facts.get("tool:uv") and not facts.get("tool:pip") and "uv" not in without:
        yield 8, "neither uv nor pip is on PATH: mods of the launcher install packages with one of them: require uv"
    for tool in ("ray", "vllm"):
        if broken := facts.get(f"broken:{tool}"):
            yield 6, f"{tool} cannot start: its first line is {broken!r}, and that interpreter is not in the image"
    if facts["rdma-core"] != "yes" and RDMA not in without:
        yield 9, "rdma-core is not in the image: add it to the packages of its base, or say smoke: {without: [rdma]}"


def _ray_faults(facts: Mapping[str, str], imported: str, python: str) -> Iterator[PointFailure]:
    """A `ray` on PATH that is not the Ray that Python imports; facts name them in the order of PATH."""
    rays = {name.removeprefix("ray:"): said.split("/", 1) for name, said in facts.items() if name.startswith("ray:")}
    first, (version, under) = next(iter(rays.items()), ("", ("", "")))
    if imported and ((version and version != imported) or (under and under != python)):
        known = [
            f"{path} ({' under Python '.join(filter(None, said)) or 'version unknown'})" for path, said in rays.items()
        ]
        words = (
            f"{len(rays)} `ray` on PATH, {', '.join(known)}: {first} comes first, but Python {python} imports Ray"
            f" {imported}, and a cluster of one is not joined by the other (`Version mismatch`): put the folder of the"
            " right one first on PATH in env:, or take the other away"
        )
        yield 7, words


def _path_faults(facts: Mapping[str, str], vllm: Answer) -> Iterator[PointFailure]:
    if not facts["vllm312"]:
        yield (
            8,
            f"{MODS_PACKAGES}/vllm is not there, where mods of the launcher patch it: link that folder to the real one",
        )
    elif not vllm.error and posixpath.dirname(vllm.value["real"]) != facts["vllm312"]:
        yield 8, f"{MODS_PACKAGES}/vllm is {facts['vllm312']}, but Python imports {vllm.value['real']}"
    for name, content in facts.items():
        if name.startswith("hidden:") and content:
            yield 11, f"{name.removeprefix('hidden:')} holds {content[:80]}: the launcher mounts a folder over it"


def _answer_faults(answers: Mapping[str, Answer], without: Collection[str]) -> Iterator[PointFailure]:
    for name, package in RDMA_LIBRARIES.items():
        if (error := answers[f"library:{name}"].error) and RDMA not in without:
            remedy = f"add {package} to the packages of the base, or say smoke: {{without: [rdma]}}"
            yield 9, f"{name} does not load ({error}): {remedy}"
    if error := answers["serve-options"].error:
        yield 12, f"`vllm serve` does not take --nnodes --node-rank --master-addr --master-port --headless: {error}"
    if error := answers["ray-options"].error:
        yield 13, f"`ray start` does not take the options that launchers give it: {error}"
    if error := answers["dashboard"].error:
        yield (
            7,
            f"Ray's dashboard is not there ({error}): require ray[default]; ray[cgraph] does not bring its packages",
        )
