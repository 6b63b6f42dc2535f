"""Check `ray`: a head starts, a second container joins it, `ray status` shows both, and both stop.

Ray is started as launch-cluster.sh of the later eras does (docs/launcher-contract.md 2.2), with two differences: Ray
has a token, and each node declares one accelerator, since no container of this check has a device.
"""

import re
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from pipeline.config.launcher_contract import ADDRESS_VARIABLES, MASTER_PORT, RAY_CPUS, RAY_OBJECT_STORE_BYTES
from pipeline.core.attempt_error import AttemptError
from pipeline.core.log import Log
from pipeline.core.waiting import wait_until
from pipeline.smoke.attempts import judge_attempts, try_repeatedly
from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.containers import PROBE_FOLDER, SECRETS, CommandResult, ContainerFactory, ProbeContainer
from pipeline.smoke.probe import Answers, ProbeAnswer
from pipeline.smoke.verdict import Verdict, describe_exit, last_lines

NAME = "ray"
CLUSTER = "ray-cluster"
"""The experiment that forms a cluster of two containers; its answer is what it has seen, in words."""
START_TIMEOUT_S = 900
STATUS_TIMEOUT_S = 300
STATUS_TRIES = 5
STOP_TIMEOUT_S = 300
QUIET_TIMEOUT_S = {False: 15, True: 180}
"""Seconds after `ray stop` until no process of Ray may be left, without and with an emulator."""
NODES = 2
TOKEN = f"{SECRETS}ray-token"
STARTED = "Ray runtime started"
# Ray's code gives its raylet and the raylet's agents 30 s (ray/_private/node.py, node_manager.cc), which a busy machine
# may exceed.
TOO_SLOW = re.compile("timed out during startup|Timed out waiting for file")
TOO_SLOW_REASON = "Ray gives its raylet 30 s to start, and it took longer"
ERROR_LOGS = "head -qc 20000 ${RAY_TMPDIR:-/tmp}/ray/session_latest/logs/{raylet,gcs_server}.{err,out} 2> /dev/null"
# `ray start --block` itself does not count: it does not end when its processes were stopped as they should be.
RAY_PROCESS = re.compile(
    r"/raylet/raylet|gcs_server|dashboard/(agent|dashboard)\.py|monitor\.py|runtime_env/agent/main\.py"
)
FLAGS = f"--object-store-memory {RAY_OBJECT_STORE_BYTES} --num-cpus {RAY_CPUS} --num-gpus 1 --disable-usage-stats"


def form_cluster(factory: ContainerFactory, log: Log) -> ProbeAnswer:
    """Forms a cluster of two containers and takes it down; tries again if the emulator crashes or Ray is too slow."""

    def attempt() -> str:
        with ExitStack() as stack:
            head, worker = _start_containers(factory, stack)
            return _run_cluster(head, worker, factory.emulated, log)

    return try_repeatedly(NAME, attempt, log)


def judge(_expected: Expectations, answers: Answers) -> Verdict:
    """Passes if the cluster was formed."""
    return judge_attempts(NAME, answers[CLUSTER])


CHECK = Check(name=NAME, judge=judge, asked=lambda image: image.smoke.ray, experiments={CLUSTER: form_cluster})


def _start_containers(factory: ContainerFactory, stack: ExitStack) -> tuple[ProbeContainer, ProbeContainer]:
    network = stack.enter_context(factory.network())
    files = {TOKEN: secrets.token_hex(32).encode()}
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{PROBE_FOLDER}/{TOKEN}"}
    head, worker = (
        stack.enter_context(factory.start(role, network=network, files=files, env=env)) for role in ("head", "worker")
    )
    return head, worker


def _run_cluster(head: ProbeContainer, worker: ProbeContainer, emulated: bool, log: Log) -> str:
    """Starts, checks and stops Ray; returns what `ray status` showed. Raises AttemptError."""
    at = head.address()
    options = {
        "head": f"--head --port {MASTER_PORT} {FLAGS} --node-ip-address {at} --include-dashboard=false",
        "worker": f"--address={at}:{MASTER_PORT} {FLAGS} --node-ip-address {worker.address()}",
    }
    running: dict[str, tuple[ProbeContainer, str]] = {}
    for role, container in (("head", head), ("worker", worker)):
        start = time.monotonic()
        running[role] = container, _begin(container, f"ray start --block {options[role]}")
        if not wait_until(partial(_is_started, running, role), timeout_s=START_TIMEOUT_S):
            raise AttemptError(f"the {role} has not started after {START_TIMEOUT_S} s", again=True)
        log.line(f"ray: {role} started after {time.monotonic() - start:.0f} s")
    summary = _check_status(head, log)
    _stop({"head": head, "worker": worker}, QUIET_TIMEOUT_S[emulated], log)
    return summary


def _begin(container: ProbeContainer, command: str) -> str:
    address = container.address()
    own = dict.fromkeys(ADDRESS_VARIABLES, address)
    env = {**own, "RAY_memory_monitor_refresh_ms": "0", "RAY_num_prestart_python_workers": "0"}
    return container.begin(["bash", "-c", f"{command} >> /proc/1/fd/1 2>&1"], env=env)


def _is_started(running: Mapping[str, tuple[ProbeContainer, str]], role: str) -> bool:
    """Tells whether the node of this role is up. Raises AttemptError once any `ray start` has ended."""
    for name, (container, exec_id) in running.items():
        status = container.status(exec_id)
        if status is not None:
            raise _start_error(name, status, container)
    return STARTED in running[role][0].output()


def _start_error(role: str, status: int, container: ProbeContainer) -> AttemptError:
    output = container.output()
    # A raylet that waits in vain aborts itself, which an emulator reports as it does its own crashes.
    errors = container.run(["bash", "-c", ERROR_LOGS], timeout_s=60).output
    slow = TOO_SLOW.search(output + errors) is not None
    crashed = not slow and CommandResult(status, output + errors, container.emulated).crashed
    reason = TOO_SLOW_REASON if slow else last_lines(output)
    message = f"the {role}'s `ray start` ended with {describe_exit(status)}: {reason}"
    return AttemptError(message, crashed=crashed, again=slow)


def _check_status(head: ProbeContainer, log: Log) -> str:
    """Asks `ray status` as launchers do, until it shows both nodes; returns that in words. Raises AttemptError."""
    nodes, accelerators, result = 0, 0.0, CommandResult(None, "")
    for _ in range(STATUS_TRIES):
        result = head.run(["bash", "-c", "ray status"], timeout_s=STATUS_TIMEOUT_S)
        if result.crashed:
            raise AttemptError("`ray status`", crashed=True)
        nodes, accelerators = parse_status(result.output)
        log.line(f"ray: {nodes} nodes, {accelerators:g} accelerators")
        if result.status == 0 and nodes == NODES and accelerators == NODES:
            return f"{nodes} nodes, {accelerators:g} accelerators, both stopped clean"
        time.sleep(2)
    if result.status != 0:
        raise AttemptError(f"`ray status` ended with {describe_exit(result.status)}: {last_lines(result.output)}")
    raise AttemptError(f"`ray status` shows {nodes} nodes and {accelerators:g} accelerators, not {NODES} and {NODES}")


def parse_status(output: str) -> tuple[int, float]:
    """Returns the active nodes and the accelerators in the output of `ray status`."""
    active = output.partition("Active:")[2].partition("Pending:")[0]
    gpus = re.search(r"^\s*[\d.]+/([\d.]+) GPU", output, re.MULTILINE)
    return len(re.findall(r"^\s*\d+ node_", active, re.MULTILINE)), float(gpus[1]) if gpus else 0.0


def _stop(containers: Mapping[str, ProbeContainer], timeout_s: float, log: Log) -> None:
    """Stops both nodes at once, and waits until no process of Ray is left. Raises AttemptError."""
    with ThreadPoolExecutor(len(containers)) as pool:
        stops = {
            role: pool.submit(container.run, ["bash", "-c", "ray stop"], timeout_s=STOP_TIMEOUT_S)
            for role, container in containers.items()
        }
    for role, container in containers.items():
        result = stops[role].result()
        if result.crashed:
            raise AttemptError("`ray stop`", crashed=True)
        if result.status != 0:
            reason = f"{describe_exit(result.status)}: {last_lines(result.output)}"
            raise AttemptError(f"`ray stop` of the {role} ended with {reason}")
        _wait_until_quiet(role, container, timeout_s)
    log.line("ray: both stopped")


def _wait_until_quiet(role: str, container: ProbeContainer, timeout_s: float) -> None:
    left: list[str] = []

    def is_quiet() -> bool:
        left[:] = [args for args in container.processes() if RAY_PROCESS.search(args)]
        return not left

    if not wait_until(is_quiet, timeout_s=timeout_s):
        raise AttemptError(f"{timeout_s:g} s after `ray stop` the {role} still runs {left[-1][:200]}")
