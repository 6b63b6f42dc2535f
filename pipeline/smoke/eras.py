"""Checks `era A` to `era D`: what launch-cluster.sh did in its four eras, applied to an image on two machines.

Each era runs the command lines of era_commands with docker's own program, until `ray status` shows both machines, and
then what that era does with a running cluster. No launcher starts Ray with a token, so that a cluster is open unless
the operator's own docker arguments bring one; the verdict says which it is.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pipeline.config.launcher_contract import CONTAINER_NAME, POINTS
from pipeline.config.models import Image
from pipeline.core.attempt_error import AttemptError
from pipeline.core.log import Log, step
from pipeline.core.waiting import wait_until
from pipeline.smoke import era_commands
from pipeline.smoke.attempts import judge_attempts, try_repeatedly
from pipeline.smoke.era_commands import LaunchParameters
from pipeline.smoke.era_machines import ClusterMachine, DockerHost, unique_word
from pipeline.smoke.era_setup import LaunchSetup, prepare_machines
from pipeline.smoke.ray import ERROR_LOGS, STARTED, TOO_SLOW, TOO_SLOW_REASON, parse_status
from pipeline.smoke.report import Smoked, conclude
from pipeline.smoke.verdict import Verdict, last_lines, reports_crash, verdict_of

LAUNCHERS_REFUSE = ": launchers refuse"
NODES = 2
READY_TIMEOUT_S = {False: 60, True: 900}
"""Seconds until `ray status` shows what it should: 30 tries, 2 s apart, as launchers have it; and with an emulator."""
STATUS_INTERVAL_S = 2
COMMAND_TIMEOUT_S = {False: 120, True: 900}
COMMAND_INTERVAL_S = {False: 1, True: 5}
MOD = "of-the-check"
RUN_SH = """#!/bin/bash
set -e
printf 'mod in %s, node in %s\\n' "$PWD" "$WORKSPACE_DIR" > ran
"""
OPEN = "open: Ray runs without a token, as launchers start it, so that whoever reaches its port runs code there"
CLOSED = "closed by the token among the operator's docker arguments"
SERVE_HELP = "vllm serve --help=all || vllm serve --help"
"""Prints all options of `vllm serve`. Older releases do not know --help=all."""


def check_eras(
    reference: str,
    image_name: str,
    image: Image,
    machines: Sequence[ClusterMachine],
    env: Mapping[str, str],
    log: Log,
    *,
    points: Mapping[str, Sequence[str]] | None = None,
    arguments: Sequence[str] = (),
    substitutions: Sequence[str] = (),
) -> Smoked:
    """Checks an image, which two machines (the head first) already have, under the launcher of every era.

    `points` are the faults that the check `launcher` found by point of the contract; one Id on both machines is added
    to them. `env` is laid over this process's environment for docker; `arguments` are the operator's own for every
    `docker run`; `substitutions` say in what the machines differ from real ones. Raises SmokeError once all eras have
    run, HostError for machines that cannot take part or that keep images in different stores, TandemError for one
    without the image, Cancelled.
    """
    with prepare_machines(machines, env, image.workdir, arguments, substitutions, log) as setup:
        for substitution in setup.substitutions:
            log.step(f"substituted: {substitution}")
        eras = [check_era(name, setup, log) for name in ERAS]
    subject = {
        "image": image_name,
        "reference": reference,
        "platform": image.platform,
        "machines": [machine.name for machine in machines],
        "substitutions": list(setup.substitutions),
    }
    return conclude(f"smoke:{image_name}:launcher", subject, [*_judge_points(points or {}, eras), *eras], log)


def _judge_points(points: Mapping[str, Sequence[str]], eras: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yields a verdict for each point of the contract; era D has compared the Ids of point 1."""
    different_ids = [detail for verdict in eras for detail in verdict.details if LAUNCHERS_REFUSE in detail]
    for number, faults in points.items():
        more = different_ids if number == "1" else ()
        yield verdict_of(f"point {number}", [*faults, *more], POINTS[int(number)])


def check_era(name: str, setup: LaunchSetup, log: Log) -> Verdict:
    """Returns the verdict on one of ERAS; launches again if the emulator crashes or Ray is too slow."""

    def attempt() -> str:
        try:
            with step(log, name):
                return f"{ERAS[name](setup, log)}; {CLOSED if setup.closed else OPEN}"
        finally:
            for host in setup.hosts:
                host.clear()

    return judge_attempts(name, try_repeatedly(name, attempt, log))


def _era_a(setup: LaunchSetup, log: Log) -> str:
    _start_script_nodes(setup, log, mods=False)
    for host, parameters in setup.pairs():
        _check_environment("A", host, parameters)
        _check_detached_command(setup, host, parameters)
    _check_launch_script(setup.head)
    return f"{NODES} nodes by {era_commands.SCRIPT}, whose ~/.bashrc later commands read"


def _era_a_mods(setup: LaunchSetup, log: Log) -> str:
    _start_script_nodes(setup, log, mods=True)
    file = f"{era_commands.MODS_FOLDER}/{MOD}/ran"
    for host, _ in setup.pairs():
        output = host.must(era_commands.execute("A", f"cat {file}"), "the mod did not run")
        expected = f"mod in {era_commands.MODS_FOLDER}/{MOD}, node in {setup.workdir}"
        if expected not in output:
            raise AttemptError(f"{host.machine.name}: the mod did not report {expected!r}: {last_lines(output)}")
    return f"{NODES} nodes, each after a mod was copied and run in it"


def _era_b(setup: LaunchSetup, log: Log) -> str:
    _start_ray_nodes("B", setup, log)
    return f"{NODES} nodes by `ray start` in containers that sleep, under the image's own entrypoint"


def _era_c(setup: LaunchSetup, log: Log) -> str:
    _start_ray_nodes("C", setup, log)
    return f"{NODES} nodes by `ray start`, with the entrypoint cleared"


def _era_d(setup: LaunchSetup, log: Log) -> str:
    commands = [(host, era_commands.image_id(parameters.image)) for host, parameters in setup.pairs()]
    ids = [host.must(command, "no image").splitlines()[-1] for host, command in commands]
    if len(set(ids)) > 1:
        names = [host.machine.name for host in setup.hosts]
        message = f"{names[0]} has the image as {ids[0]}, {names[1]} as {ids[1]}{LAUNCHERS_REFUSE}; pull one digest"
        raise AttemptError(message)
    _start_ray_nodes("D", setup, log)
    for host, parameters in setup.pairs():
        _check_without_ray(setup, host, parameters)
    return f"one Id ({ids[0][:19]}) on both, {NODES} nodes by `ray start`, and without Ray vllm takes its options"


ERAS: dict[str, Callable[[LaunchSetup, Log], str]] = {
    "era A": _era_a,
    "era A, mods": _era_a_mods,
    "era B": _era_b,
    "era C": _era_c,
    "era D": _era_d,
}
"""What each era does, by the name of its check; each returns a summary or raises AttemptError."""


def _start_script_nodes(setup: LaunchSetup, log: Log, *, mods: bool) -> None:
    """Starts both machines as era A does. Raises AttemptError."""
    for number, (host, parameters) in enumerate(setup.pairs()):
        if number and setup.emulated:
            _wait_for_nodes(setup, 1, log)
        host.launch(era_commands.docker_run("A", parameters, mods=mods))
        if mods and setup.emulated:
            _apply_mod(host)
    if mods and not setup.emulated:
        for host in setup.hosts:
            _apply_mod(host)
    _wait_for_nodes(setup, NODES, log)


def _apply_mod(host: DockerHost) -> None:
    with tempfile.TemporaryDirectory(prefix="tandem-mod-") as folder:
        script = Path(folder) / "run.sh"
        script.write_text(RUN_SH, encoding="utf-8")
        for words in era_commands.apply_mod(folder, MOD):
            host.must(words, f"the mod cannot be applied (docker {words[0]})")


def _start_ray_nodes(era: str, setup: LaunchSetup, log: Log) -> None:
    """Starts both machines as eras B to D do, and checks the environment of their commands. Raises AttemptError."""
    for host, parameters in setup.pairs():
        host.launch(era_commands.docker_run(era, parameters))
        if era in "CD":
            host.must(era_commands.make_workspace(), "mkdir -p /workspace")
    for number, (host, parameters) in enumerate(setup.pairs(), 1):
        host.must(era_commands.start_ray(parameters), "`ray start` does not start")
        _wait_for_nodes(setup, number, log)
        _check_environment(era, host, parameters)
    output = setup.head.output()
    if STARTED not in output:
        raise AttemptError(
            f"{setup.head.machine.name}: the output of `ray start` to /proc/1/fd/1 is not in `docker logs`:"
            f" {last_lines(output)}"
        )


def _wait_for_nodes(setup: LaunchSetup, nodes: int, log: Log) -> None:
    """Asks `ray status` on the head until it shows that many machines. Raises AttemptError, Cancelled."""
    shown = 0

    def is_ready() -> bool:
        nonlocal shown
        timeout_s = COMMAND_TIMEOUT_S[setup.emulated]
        result = setup.head.docker(era_commands.ray_status(), timeout_s=timeout_s, quiet=True)
        shown = parse_status(result.output)[0] if result.status == 0 else 0
        if shown < nodes:
            for host in setup.hosts[:nodes]:
                if ended := _ended(host):
                    raise _failure(host, ended)
        return shown >= nodes

    timeout_s = READY_TIMEOUT_S[setup.emulated]
    if not wait_until(is_ready, timeout_s=timeout_s, interval_s=STATUS_INTERVAL_S):
        raise _failure(setup.hosts[0], f"`ray status` shows {shown} of {nodes} nodes")
    log.line(f"`ray status`: {shown} nodes")


def _ended(host: DockerHost) -> str:
    """Returns that a machine's container, or Ray in it, has ended; empty if both run."""
    if not host.is_running():
        return "the container has ended"
    return "`ray start` has ended" if _ray_has_ended(host) else ""


def _failure(host: DockerHost, event: str) -> AttemptError:
    """Returns the failure of a launch, with the cause that the machine's output shows."""
    running = host.is_running()
    output = host.output() if running else host.last_output()
    command = ["exec", CONTAINER_NAME, "bash", "-c", ERROR_LOGS]
    errors = host.docker(command, quiet=True).output if running else ""
    slow = TOO_SLOW.search(output + errors) is not None
    crashed = not slow and reports_crash(output + errors)
    reason = TOO_SLOW_REASON if slow else _version_mismatch(output) or last_lines(output)
    return AttemptError(f"{host.machine.name}: {event}: {reason}", crashed=crashed, again=slow)


def _version_mismatch(output: str) -> str:
    """Returns Ray's complaint about a node with another Ray or Python on one line; empty if there is none."""
    if "Version mismatch" not in output:
        return ""
    versions = re.findall(r"^\s*(Ray|Python): (\S+)", output.partition("Version mismatch")[2], re.MULTILINE)
    cluster, node = (
        " and ".join(f"{name} {version}" for name, version in versions[start : start + 2]) for start in (0, 2)
    )
    return f"Version mismatch: the cluster has {cluster}, this node {node}: run one image, by digest, on both"


def _ray_has_ended(host: DockerHost) -> bool:
    """Tells whether a container that only sleeps has no `ray start` any more; a container of era A ends with it."""
    processes = host.docker(["top", CONTAINER_NAME, "-eo", "pid,args"], quiet=True)
    return processes.status == 0 and "sleep infinity" in processes.output and "ray start" not in processes.output


def _check_environment(era: str, host: DockerHost, parameters: LaunchParameters) -> None:
    """Raises AttemptError if an executed command does not see a variable that the era sets."""
    expected = era_commands.environment(parameters)
    if era == "D":
        expected["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    output = host.must(era_commands.execute(era, "export -p"), "no command can be executed")
    for name, value in expected.items():
        if f'{name}="{value}"' not in output:
            raise AttemptError(f"{host.machine.name}: an executed command does not see {name}={value}")


def _check_detached_command(setup: LaunchSetup, host: DockerHost, parameters: LaunchParameters) -> None:
    """Raises AttemptError unless a detached command of era A sees VLLM_HOST_IP, with its output in `docker logs`."""
    word = unique_word("detached")
    command = era_commands.execute_detached("A", f"echo {word} $VLLM_HOST_IP")
    host.must(command, "no command can be detached")
    expected = f"{word} {parameters.own}"
    what = f"{host.machine.name}: the output of a detached command that prints VLLM_HOST_IP={parameters.own}"
    _wait_for(lambda: expected in host.output(), setup, what)


def _wait_for(ready: Callable[[], bool], setup: LaunchSetup, what: str) -> None:
    """Waits until it is ready. Raises AttemptError, Cancelled."""
    timeout_s, interval_s = COMMAND_TIMEOUT_S[setup.emulated], COMMAND_INTERVAL_S[setup.emulated]
    if not wait_until(ready, timeout_s=timeout_s, interval_s=interval_s):
        raise AttemptError(f"{what} does not come")


def _check_launch_script(head: DockerHost) -> None:
    word = unique_word("script")
    with tempfile.TemporaryDirectory(prefix="tandem-script-") as folder:
        file = Path(folder) / "exec-script.sh"
        file.write_text(f'#!/bin/bash\necho "{word} $VLLM_HOST_IP"\n', encoding="utf-8")
        for words in era_commands.copy_launch_script(str(file)):
            head.must(words, "the launch script cannot be copied")
    output = head.must(era_commands.execute("A", "/workspace/exec-script.sh"), "the launch script does not run")
    if f"{word} {head.machine.address}" not in output:
        reason = f"the launch script does not see VLLM_HOST_IP: {last_lines(output)}"
        raise AttemptError(f"{head.machine.name}: {reason}")


def _check_without_ray(setup: LaunchSetup, host: DockerHost, parameters: LaunchParameters) -> None:
    """Raises AttemptError unless `vllm serve` lists what launchers append if Ray is not wanted.

    The head's command of era D runs detached in the same way.
    """
    word, name = unique_word("listed"), host.machine.name
    host.must(era_commands.run_detached(["bash", "-c", f"{SERVE_HELP} && echo {word}"]), "no command can be detached")
    status: list[str] = []
    what = f"{name}: the exit status of a detached command"
    _wait_for(partial(_has_exit_status, host, status), setup, what)
    if status != ["0"]:
        raise AttemptError(f"{name}: `vllm serve` cannot be asked for its options: {last_lines(host.output())}")
    _wait_for(lambda: word in host.output(), setup, f"{name}: the output of a detached command")
    listed = set(re.findall(r"--[a-z][\w-]*", host.output()))
    options = [option for option in era_commands.options_without_ray(parameters) if option.startswith("--")]
    if missing := [option for option in options if option not in listed]:
        raise AttemptError(f"{name}: `vllm serve` does not take {' '.join(missing)}")


def _has_exit_status(host: DockerHost, status: list[str]) -> bool:
    """Puts the exit status of the detached command into `status`, and tells whether there is one."""
    result = host.docker(era_commands.read_exit_status())
    status[:] = result.output.split() if result.status == 0 else []
    return bool(status)
