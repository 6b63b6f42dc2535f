"""The lab: machines that are real in all but the GPU, on a private network of this machine's engine.

Each is a container of Debian packages with an ssh server and a Docker engine of its own. They are reached by `ssh://`
endpoints, and they reach the registry of pipeline.yaml as machines.REGISTRY.
"""

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config import loader
from pipeline.core import procs
from pipeline.core.errors import Cancelled, ConfigError, TandemError
from pipeline.core.interrupts import uninterrupted
from pipeline.core.locks import hold_lock
from pipeline.core.log import Log, step
from pipeline.core.waiting import wait_until
from pipeline.host import engine
from pipeline.lab import machine_image, machines, ssh
from pipeline.lab.machines import REGISTRY, STORES, LabContainer, LabPlan
from pipeline.lock.service_packages import LAB

MAX_MACHINES, DEFAULT_MACHINES = 9, 2
USUAL_START_S, START_TIMEOUT_S = 8, 120
VERSION_TIMEOUT_S = 20
SUBSTITUTIONS = (
    "a machine is a privileged container: it shares this machine's kernel, processors, memory and clock",
    "nvidia-container-runtime-hook does nothing: `--gpus all` is taken, and gives no GPU",
    "/dev/infiniband/uverbs0 is /dev/null: `--device=/dev/infiniband` is taken, and gives no RDMA",
    "the machines have this machine's architecture; arm64 images run under its emulator, where it is another",
    f"the registry is {REGISTRY}, without TLS; nothing else outside of the lab can be reached",
    "no systemd: the first process starts dockerd and sshd, and ends with either",
)
"""In what a machine of the lab differs from a real one."""


@dataclass(frozen=True)
class Machine:
    """One machine of a lab."""

    name: str
    """Its host name."""
    address: str
    """Its address on the lab's network; empty if it does not run."""
    endpoint: str
    """Its Docker endpoint, as in ssh://root@172.20.0.2; empty if it does not run."""
    store: str
    """The image store of its Docker engine, one of STORES."""


@dataclass(frozen=True)
class MachineStatus:
    """A machine and its state at one moment."""

    machine: Machine
    state: str
    """The state of its container, as Docker names it."""
    engine: str
    """The version of its Docker engine; empty if it does not answer over ssh."""


def running_machines(root: Path) -> tuple[Machine, ...]:
    """Returns the machines of a checkout's lab; none unless all of them run. Raises HostError without an engine."""
    containers = machines.find_containers(lab_id(root))
    return tuple(map(_machine, containers)) if _is_whole(root, containers) else ()


def environment(root: Path) -> dict[str, str]:
    """Returns the environment that a program needs to reach the machines; it holds no secret.

    Raises TandemError if there is no lab.
    """
    folder = ssh_program_folder(root)
    if not folder.is_dir():
        raise TandemError("no lab is up", hint="./doitw lab up")
    return {"PATH": os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])}


def ssh_program_folder(root: Path) -> Path:
    """Returns the folder of the lab's own `ssh`, which must come first on PATH."""
    return ssh.files_folder(root).resolve() / ssh.BIN


def machine_statuses(root: Path) -> tuple[MachineStatus, ...]:
    """Returns the status of every machine that has a container; asks all of them over ssh at the same time."""
    containers = machines.find_containers(lab_id(root))
    if not containers:
        return ()

    def status(container: LabContainer) -> MachineStatus:
        return MachineStatus(_machine(container), container.state, _engine_version(root, container))

    with ThreadPoolExecutor(len(containers)) as pool:
        return tuple(pool.map(status, containers))


def up(root: Path, log: Log, *, store: str = "", count: int = 0, registry: str = "") -> tuple[Machine, ...]:
    """Brings a lab up, and waits until its engines answer over ssh.

    A lab that is up as it is asked for stays; any other is replaced. `store` is one of STORES, `count` the number of
    machines; the defaults are those of the lab that is up, or else containerd and 2. `registry` (host:port, as this
    machine sees it) is that of pipeline.yaml by default. A start that fails or is interrupted leaves nothing behind.
    Waits while another process uses the lab. Raises HostError without an engine or ssh, ConfigError, TandemError.
    """
    _check_arguments(store, count)
    with _lock(root, log):
        return _bring_up(root, log, store, count, registry)


def down(root: Path) -> list[str]:
    """Removes all of a checkout's lab but the image of its machines; returns what was removed.

    Raises BusyError while another process makes or uses the lab.
    """
    with _lock(root):
        return _remove(root)


@contextmanager
def lab_in_use(root: Path, store: str, log: Log, *, registry: str = "") -> Iterator[tuple[Machine, ...]]:
    """Yields the machines of a lab with this image store ("": any), which no other process uses meanwhile.

    Takes the lab that is up; without one, brings one up and takes it down at the end. In the block the lab's `ssh`
    comes first on this process's own PATH too, so that the SDK reaches the machines. Raises what up() raises, and
    TandemError if a lab with another store is up.
    """
    with _lock(root, log):
        present = running_machines(root)
        if present and store and present[0].store != store:
            raise TandemError(
                f"a lab with the image store {present[0].store} is up, and {store} is wanted", hint="./doitw lab down"
            )
        path = os.environ.get("PATH")
        try:
            ready = _bring_up(root, log, store, 0, registry)
            os.environ.update(environment(root))
            yield ready
        finally:
            if path is None:
                os.environ.pop("PATH", None)
            else:
                os.environ["PATH"] = path
            if not present:
                with uninterrupted():
                    _remove(root)


def lab_id(root: Path) -> str:
    """Returns what tells the lab of this checkout from another's in the same engine."""
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:6]


def _check_arguments(store: str, count: int) -> None:
    if store and store not in STORES:
        raise ConfigError(f"--store {store}: there is no such image store", hint=" or ".join(STORES))
    if not 0 <= count <= MAX_MACHINES:
        raise ConfigError(f"--machines {count}: a lab has 1 to {MAX_MACHINES} machines")


def _machine(container: LabContainer) -> Machine:
    endpoint = f"ssh://root@{container.address}" if container.address else ""
    return Machine(container.name, container.address, endpoint, container.store)


def _bring_up(root: Path, log: Log, store: str, count: int, registry: str) -> tuple[Machine, ...]:
    """Does what up() promises; the caller has the lock."""
    program = ssh.find_programs(ssh.files_folder(root).resolve())
    registry = registry or loader.load_config(root).pipeline.registry.address
    containers = machines.find_containers(lab_id(root))
    plan = _plan(root, containers, store, count)
    if _is_whole(root, containers) and _is_as_planned(plan, containers):
        return _connect(root, program, registry, log)
    if containers:
        log.line("the present lab is not as asked for, or not whole: it is replaced")
    _remove(root)
    try:
        _start(root, plan, log)
        return _connect(root, program, registry, log)
    except BaseException:
        log.line("the lab is taken down again")
        with uninterrupted():
            _remove(root)
        raise


def _plan(root: Path, containers: Sequence[LabContainer], store: str, count: int) -> LabPlan:
    stores = {container.store for container in containers}
    present_store = stores.pop() if len(stores) == 1 else STORES[0]
    return LabPlan(
        store=store or present_store,
        image=machine_image.image_name(LAB.read(root)),
        count=count or _planned_size(containers) or DEFAULT_MACHINES,
    )


def _planned_size(containers: Sequence[LabContainer]) -> int:
    """Returns how many machines the lab of these containers was made of, however many are left."""
    return max((int(container.labels.get(machines.COUNT, "0")) for container in containers), default=0)


def _is_whole(root: Path, containers: Sequence[LabContainer]) -> bool:
    """Tells whether all machines of a lab run, and accept this checkout's key."""
    key = ssh.public_key(ssh.files_folder(root))
    running = all(container.state == "running" and container.address for container in containers)
    keys = {container.labels.get(machines.KEY) for container in containers}
    return len(containers) == _planned_size(containers) > 0 and running and keys == {key}


def _is_as_planned(plan: LabPlan, containers: Sequence[LabContainer]) -> bool:
    kinds = {(container.store, container.labels.get(machines.IMAGE)) for container in containers}
    return kinds == {(plan.store, plan.image)} and [container.name for container in containers] == plan.names


def _start(root: Path, plan: LabPlan, log: Log) -> None:
    lab = lab_id(root)
    with tempfile.TemporaryDirectory(prefix="tandem-lab-") as folder, engine.failures("the lab"):
        scratch = Path(folder)
        machine_image.make_image(LAB.read(root), scratch, log)
        key = ssh.make_key(ssh.files_folder(root))
        with step(log, f"{plan.count} machine{'s' * (plan.count > 1)} with the image store {plan.store}"):
            client = engine.client()
            machines.create_network(client, lab)
            for name in plan.names:
                machines.start_machine(client, lab, name, plan, key, ssh.make_host_key(scratch))


def _connect(root: Path, program: str, registry: str, log: Log) -> tuple[Machine, ...]:
    """Makes the machines reachable by ssh, and the registry from them; waits until every engine answers."""
    lab = lab_id(root)
    containers = machines.find_containers(lab)
    host_keys = {container.address: container.labels[machines.HOST_KEY] for container in containers}
    ssh.write_files(ssh.files_folder(root).resolve(), program, host_keys)
    with engine.failures("the lab"), step(log, "the engines answer over ssh"):
        client = engine.client()
        machines.start_relay(client, lab, containers[0].labels[machines.IMAGE], registry, log)
        for container in containers:
            ready, name = partial(_is_ready, root, container), container.name
            if not wait_until(ready, timeout_s=START_TIMEOUT_S, log=log, title=name, usual_s=USUAL_START_S):
                output = machines.last_output(client, lab, name)
                raise TandemError(f"{name} does not answer over ssh; its last output:\n{output}")
    return tuple(map(_machine, containers))


def _is_ready(root: Path, container: LabContainer) -> bool:
    """Tells whether a machine's engine answers over ssh. Raises TandemError if the machine has ended."""
    lab, name = lab_id(root), container.name
    if all(now.state != "running" for now in machines.find_containers(lab) if now.name == name):
        output = machines.last_output(engine.client(), lab, name)
        raise TandemError(f"{name} has ended; its last output:\n{output}")
    return _engine_version(root, container) != ""


def _engine_version(root: Path, container: LabContainer) -> str:
    """Returns the version of a machine's engine; empty if it does not answer over ssh."""
    endpoint = _machine(container).endpoint
    if container.state != "running" or not endpoint:
        return ""
    argv = ["docker", "--host", endpoint, "version", "--format", "{{.Server.Version}}"]
    try:
        return procs.capture(argv, inherit=procs.DOCKER, env=environment(root), timeout_s=VERSION_TIMEOUT_S).strip()
    except Cancelled:
        raise
    except TandemError:
        return ""


def _remove(root: Path) -> list[str]:
    with engine.failures("the lab"):
        removed = machines.remove_lab(engine.client(), lab_id(root))
    folder = ssh.files_folder(root)
    if folder.exists():
        shutil.rmtree(folder)
        removed.append("keys and configuration of ssh in artifacts/lab")
    return removed


@contextmanager
def _lock(root: Path, log: Log | None = None) -> Iterator[None]:
    """Lets one process at a time make, use or remove the lab; waits for it, or raises BusyError without a log."""
    path = root / "artifacts" / "lab.lock"
    with hold_lock(path, what="the lab of this checkout", log=log, state="in use", timeout_s=math.inf):
        yield
