"""Check `ray`: a head starts, a second container joins it, `ray status` shows both, both stop clean.

Ray is started as launch-cluster.sh of the later eras does (docs/launcher-contract.md 2.2), with two things of our own:
token authentication, and one accelerator a node declared by hand, since no container of this check has a device.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from pipeline.config.launcher_contract import ADDRESS_VARIABLES, MASTER_PORT, RAY_CPUS, RAY_OBJECT_STORE_BYTES
from pipeline.core import procs
from pipeline.core.errors import Cancelled
from pipeline.core.log import Log
from pipeline.smoke.containers import INSIDE, SECRETS, Box, BoxError, Said, Yard
from pipeline.smoke.verdict import Verdict, crash_verdict, ending, judge

NAME = "ray"
ATTEMPTS = 3
START_WITHIN = 900
STATUS_WITHIN = 300
STATUS_TRIES = 5
STOP_WITHIN = 300
QUIET_WITHIN = {False: 15, True: 180}
"""Seconds after `ray stop` until nothing of Ray may be left, without and with an emulator."""
NODES = 2
TOKEN = f"{SECRETS}ray-token"
STARTED = "Ray runtime started"
# Ray gives its raylet and that its agents 30 s, written into their code (ray/_private/node.py, node_manager.cc); a busy
# machine misses that.
TOO_SLOW = re.compile("timed out during startup|Timed out waiting for file")
ERRORS = "head -qc 20000 /tmp/ray/session_latest/logs/{raylet,gcs_server}.{err,out} 2> /dev/null"
# Not `ray start --block` itself: it goes on watching for ever once its processes were stopped as they should be.
OF_RAY = re.compile(r"/raylet/raylet|gcs_server|dashboard/(agent|dashboard)\.py|monitor\.py|runtime_env/agent/main\.py")
FLAGS = f"--object-store-memory {RAY_OBJECT_STORE_BYTES} --num-cpus {RAY_CPUS} --num-gpus 1 --disable-usage-stats"


class _Fault(Exception):
    """The check fails for this reason; `again`: a fresh pair of containers may do better."""

    def __init__(self, reason: str, *, crashed: bool = False, again: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed
        self.again = again


def check(yard: Yard, log: Log) -> Verdict:
    """The verdict, after up to ATTEMPTS pairs of containers where the emulator crashed or Ray was too slow."""
    last = _Fault("")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with ExitStack() as stack:
                head, worker = _pair(yard, stack)
                found = _cluster(head, worker, yard.emulated, log)
        except _Fault as fault:
            log.line(f"ray: {fault} (attempt {attempt} of {ATTEMPTS})")
            if not fault.again and not fault.crashed:
                return judge(NAME, [str(fault)], "")
            last = fault
        except BoxError as error:
            log.line(f"ray: {error}")
            return judge(NAME, [str(error)], "")
        else:
            return judge(NAME, [], found)
    return crash_verdict(NAME, str(last), ATTEMPTS) if last.crashed else judge(NAME, [str(last)], "")


def _pair(yard: Yard, stack: ExitStack) -> tuple[Box, Box]:
    network = stack.enter_context(yard.network())
    files = {TOKEN: secrets.token_hex(32).encode()}
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{INSIDE}/{TOKEN}"}
    head, worker = (
        stack.enter_context(yard.box(role, network=network, files=files, env=env)) for role in ("head", "worker")
    )
    return head, worker


def _cluster(head: Box, worker: Box, emulated: bool, log: Log) -> str:
    """Start, look, stop; returns what `ray status` showed. Raises _Fault."""
    at = head.address()
    starts = {
        "head": f"--head --port {MASTER_PORT} {FLAGS} --node-ip-address {at} --include-dashboard=false",
        "worker": f"--address={at}:{MASTER_PORT} {FLAGS} --node-ip-address {worker.address()}",
    }
    running: dict[str, tuple[Box, str]] = {}
    for role, box in (("head", head), ("worker", worker)):
        begun = time.monotonic()
        running[role] = box, _begin(box, f"ray start --block {starts[role]}")
        _wait(partial(_started, running, role), START_WITHIN, f"the {role} has not started")
        log.line(f"ray: {role} started after {time.monotonic() - begun:.0f} s")
    shown = _status(head, log)
    _stop({"head": head, "worker": worker}, QUIET_WITHIN[emulated], log)
    return shown


def _begin(box: Box, command: str) -> str:
    address = box.address()
    own = dict.fromkeys(ADDRESS_VARIABLES, address)
    env = {**own, "RAY_memory_monitor_refresh_ms": "0", "RAY_num_prestart_python_workers": "0"}
    return box.begin(["bash", "-c", f"{command} >> /proc/1/fd/1 2>&1"], env=env)


def _started(running: Mapping[str, tuple[Box, str]], role: str) -> bool:
    """Whether the node of this role is up. Raises _Fault once any `ray start` has ended."""
    for name, (box, made) in running.items():
        status = box.status(made)
        if status is not None:
            raise _ended(name, status, box)
    return STARTED in running[role][0].output()


def _ended(role: str, status: int, box: Box) -> _Fault:
    output = box.output()
    # A raylet that waits in vain aborts itself, which an emulator reports as it does its own crashes.
    errors = box.run(["bash", "-c", ERRORS], within=60).text
    slow = TOO_SLOW.search(output + errors) is not None
    crashed = not slow and Said(status, output + errors, box.emulated).crashed
    why = "Ray gives its raylet 30 s to start, and it took longer" if slow else _last(output)
    return _Fault(f"the {role}'s `ray start` ended with {ending(status)}: {why}", crashed=crashed, again=slow)


def _wait(ready: Callable[[], bool], within: float, failure: str) -> None:
    deadline = time.monotonic() + within
    while not ready():
        if procs.cancelled():
            raise Cancelled("interrupted")
        if time.monotonic() > deadline:
            raise _Fault(f"{failure} after {within:g} s", again=True)
        time.sleep(1)


def _status(head: Box, log: Log) -> str:
    """What `ray status`, asked as launchers do, says of nodes and accelerators. Raises _Fault."""
    nodes, accelerators, said = 0, 0.0, Said(None, "")
    for _ in range(STATUS_TRIES):
        said = head.run(["bash", "-c", "ray status"], within=STATUS_WITHIN)
        if said.crashed:
            raise _Fault("`ray status`", crashed=True)
        nodes, accelerators = read_status(said.text)
        log.line(f"ray: {nodes} nodes, {accelerators:g} accelerators")
        if said.status == 0 and nodes == NODES and accelerators == NODES:
            return f"{nodes} nodes, {accelerators:g} accelerators, both stopped clean"
        time.sleep(2)
    if said.status != 0:
        raise _Fault(f"`ray status` ended with {ending(said.status)}: {_last(said.text)}")
    raise _Fault(f"`ray status` shows {nodes} nodes and {accelerators:g} accelerators, not {NODES} and {NODES}")


def read_status(text: str) -> tuple[int, float]:
    """Active nodes and accelerators in the output of `ray status`."""
    active = text.partition("Active:")[2].partition("Pending:")[0]
    gpus = re.search(r"^\s*[\d.]+/([\d.]+) GPU", text, re.MULTILINE)
    return len(re.findall(r"^\s*\d+ node_", active, re.MULTILINE)), float(gpus[1]) if gpus else 0.0


def _stop(boxes: Mapping[str, Box], within: float, log: Log) -> None:
    """Stop both nodes at once, and see that nothing of Ray is left. Raises _Fault."""
    with ThreadPoolExecutor(len(boxes)) as pool:
        stops = {
            role: pool.submit(box.run, ["bash", "-c", "ray stop"], within=STOP_WITHIN) for role, box in boxes.items()
        }
    for role, box in boxes.items():
        said = stops[role].result()
        if said.crashed:
            raise _Fault("`ray stop`", crashed=True)
        if said.status != 0:
            raise _Fault(f"`ray stop` of the {role} ended with {ending(said.status)}: {_last(said.text)}")
        deadline = time.monotonic() + within
        while left := _of_ray(box):
            if procs.cancelled():
                raise Cancelled("interrupted")
            if time.monotonic() > deadline:
                raise _Fault(f"{within:g} s after `ray stop` the {role} still runs {left[-1][:200]}")
            time.sleep(1)
    log.line("ray: both stopped")


def _of_ray(box: Box) -> list[str]:
    return [args for args in box.processes() if OF_RAY.search(args)]


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-500:] or "no output"
