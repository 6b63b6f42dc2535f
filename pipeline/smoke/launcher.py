"""Check `launcher`: an unmodified launch-cluster.sh of any era can drive the image.

The points that are checked are in docs/launcher-contract.md 2.6.
"""

import posixpath
from collections.abc import Collection, Iterator, Mapping
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
from pipeline.core.log import Log
from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.consistency import REQUIREMENTS
from pipeline.smoke.containers import PROBE_FOLDER, CommandResult, ContainerFactory, ProbeContainer
from pipeline.smoke.entrypoint import try_entrypoint
from pipeline.smoke.node_script import script_faults
from pipeline.smoke.probe import ATTEMPTS, Answers, ProbeAnswer, judge_crashes
from pipeline.smoke.verdict import Verdict, crash_verdict, describe_exit, verdict_of
from pipeline.smoke.versions import VERSIONS, installed_version

NAME = "launcher"
MARK = "@@fact "
FACTS_TIMEOUT_S = 300
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
DESCRIPTION, ENTRYPOINT, SHELL_FACTS = "image-description", "entrypoint", "launcher_facts.sh"
TOOLS = ("ray", "vllm", "python3", "git", "curl", "patch", "earlyoom")
TOOL_POINTS = {**dict.fromkeys(("ray", "vllm", "python3", "git"), 6), "curl": 8, "patch": 8, "earlyoom": 9}
"""The points of the contract that ask for programs; the others belong to point 3."""
FOLDER_POINTS = {"/root": 3, "/tmp": 3, WORKSPACE: 5}
"""The points of the contract that ask for folders; the others belong to point 4."""


def describe_image(factory: ContainerFactory, _log: Log) -> ProbeAnswer:
    """Answers with the engine's description of the image."""
    return ProbeAnswer(factory.description())


def collect_facts(factory: ContainerFactory, _log: Log) -> ProbeAnswer:
    """Answers with the facts of the shell probe and how it ended; runs it again if the emulator crashes."""
    with factory.start("launcher") as container:
        return run_shell_probe(container)


def run_shell_probe(container: ProbeContainer) -> ProbeAnswer:
    """Answers with the facts of probes/launcher_facts.sh by name, and its CommandResult."""
    result = CommandResult(None, "")
    for _ in range(ATTEMPTS):
        result = container.run(["bash", f"{PROBE_FOLDER}/launcher_facts.sh"], timeout_s=FACTS_TIMEOUT_S)
        if not result.crashed:
            break
    pairs = [line.removeprefix(MARK).split("=", 1) for line in result.output.splitlines() if line.startswith(MARK)]
    return ProbeAnswer((dict(pairs), result), crashed=result.crashed)


def judge(expected: Expectations, answers: Answers) -> Verdict:
    """Names every point of the launcher contract that the image fails."""
    for experiment in CHECK.experiments:
        if answers[experiment].crashed:
            return crash_verdict(NAME, experiment, ATTEMPTS)
    if crash := judge_crashes(NAME, answers, QUESTIONS):
        return crash
    if error := answers[SHELL_FACTS].error:
        return verdict_of(NAME, [error], "")
    facts, result = answers[SHELL_FACTS].value
    image = expected.image
    failures = [
        *_description_faults(answers[DESCRIPTION].value, image.platform),
        *((2, words) for words in answers[ENTRYPOINT].value),
        *_shell_faults(facts, result, answers, expected),
        *_answer_faults(answers, image.smoke.without),
    ]
    summary = "an unmodified launch-cluster.sh of any era can drive it"
    if image.smoke.without:
        summary += f", without {', '.join(image.smoke.without)}"
    return verdict_of(NAME, [words for _, words in failures], summary, by_point(failures))


CHECK = Check(
    name=NAME,
    judge=judge,
    asked=lambda image: image.smoke.launcher,
    questions=lambda _image: (*QUESTIONS, VERSIONS, REQUIREMENTS),
    experiments={DESCRIPTION: describe_image, ENTRYPOINT: try_entrypoint, SHELL_FACTS: collect_facts},
)


def _description_faults(description: Mapping[str, Any], platform: str) -> Iterator[PointFailure]:
    """Yields what the engine's description of the image shows."""
    config = description["Config"] or {}
    is_platform = f"{description['Os']}/{description['Architecture']}"
    if is_platform != platform:
        yield 1, f"the image is for {is_platform}, but image.yaml says {platform}"
    if (config.get("User") or "") not in ROOT_USERS:
        yield 3, f"USER is {config['User']}: launchers write /root/.bashrc, so it must be root"
    for entry in config.get("Env") or []:
        if is_node_specific(entry.partition("=")[0]):
            yield 10, f"{entry!r} is baked into ENV: it differs from node to node, and the launcher sets it"


def _shell_faults(
    facts: Mapping[str, str], result: CommandResult, answers: Answers, expected: Expectations
) -> Iterator[PointFailure]:
    """Yields what the facts of the shell probe show, beside answers of the Python probe."""
    if "uid" not in facts:
        yield 3, f"bash does not run in the image: {result.output.strip()[-300:] or describe_exit(result.status)}"
        return
    yield from _user_faults(facts, expected.image.workdir)
    yield from _tool_faults(facts, expected.image.smoke.without)
    yield from _path_faults(facts, answers["import:vllm"])
    python = (answers[REQUIREMENTS].value or {"python": ""})["python"]
    yield from _ray_faults(facts, installed_version(answers, "ray"), python)
    for words in script_faults(facts):
        yield 4, words
    if result.status != 0:
        yield 3, f"the shell probe ended with {describe_exit(result.status)}: {result.output.strip()[-300:]}"


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
            yield FOLDER_POINTS.get(folder, 4), f"{folder} is missing or cannot be written to"


def _tool_faults(facts: Mapping[str, str], without: Collection[str]) -> Iterator[PointFailure]:
    for tool in (*SHELL_TOOLS, *TOOLS):
        if not facts.get(f"tool:{tool}") and tool not in without:
            remedy = f", or say smoke: {{without: [{tool}]}}" if tool in WAIVED else ""
            words = f"{tool} is not on the PATH of `docker exec … bash -c`: add it, or its folder to PATH in env:"
            yield TOOL_POINTS.get(tool, 3), words + remedy
    if not facts.get("tool:uv") and not facts.get("tool:pip") and "uv" not in without:
        yield 8, "neither uv nor pip is on PATH: mods of the launcher install packages with one of them: require uv"
    for tool in ("ray", "vllm"):
        if broken := facts.get(f"broken:{tool}"):
            yield 6, f"{tool} cannot start: its first line is {broken!r}, and that interpreter is not in the image"
    if facts["rdma-core"] != "yes" and RDMA not in without:
        yield 9, "rdma-core is not in the image: add it to the packages of its base, or say smoke: {without: [rdma]}"


def _ray_faults(facts: Mapping[str, str], imported: str, python: str) -> Iterator[PointFailure]:
    """Yields a fault if the first `ray` on PATH is not the Ray that Python imports."""
    # In the order of PATH; each fact is VERSION/PYTHON.
    rays = {name.removeprefix("ray:"): fact.split("/", 1) for name, fact in facts.items() if name.startswith("ray:")}
    first, (version, under) = next(iter(rays.items()), ("", ("", "")))
    if imported and ((version and version != imported) or (under and under != python)):
        known = [
            f"{path} ({' under Python '.join(filter(None, parts)) or 'version unknown'})"
            for path, parts in rays.items()
        ]
        words = (
            f"{len(rays)} `ray` on PATH, {', '.join(known)}: {first} comes first, but Python {python} imports Ray"
            f" {imported}, and a cluster of one is not joined by the other (`Version mismatch`): put the folder of the"
            " right one first on PATH in env:, or remove the other"
        )
        yield 7, words


def _path_faults(facts: Mapping[str, str], vllm: ProbeAnswer) -> Iterator[PointFailure]:
    if not facts["vllm312"]:
        reason = "does not exist, where mods of the launcher patch it: link that folder to the real one"
        yield 8, f"{MODS_PACKAGES}/vllm {reason}"
    elif not vllm.error and posixpath.dirname(vllm.value["real"]) != facts["vllm312"]:
        yield 8, f"{MODS_PACKAGES}/vllm is {facts['vllm312']}, but Python imports {vllm.value['real']}"
    for name, content in facts.items():
        if name.startswith("hidden:") and content:
            yield 11, f"{name.removeprefix('hidden:')} holds {content[:80]}: the launcher mounts a folder over it"


def _answer_faults(answers: Answers, without: Collection[str]) -> Iterator[PointFailure]:
    for name, package in RDMA_LIBRARIES.items():
        if (error := answers[f"library:{name}"].error) and RDMA not in without:
            remedy = f"add {package} to the packages of the base, or say smoke: {{without: [rdma]}}"
            yield 9, f"{name} does not load ({error}): {remedy}"
    serve = answers["serve-options"]
    if serve.error:
        yield 12, f"`vllm serve` cannot be asked for its options: {serve.error}"
    elif serve.value["missing"]:
        yield 12, f"`vllm serve` does not take {' '.join(serve.value['missing'])}: use a later vLLM"
    if error := answers["ray-options"].error:
        yield 13, f"`ray start` does not take the options that launchers give it: {error}"
    if error := answers["dashboard"].error:
        yield (
            7,
            f"Ray's dashboard is missing ({error}): require ray[default]; ray[cgraph] does not bring its packages",
        )
