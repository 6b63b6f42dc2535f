"""The lab: machines that are real in all but the GPU, on a private network of this machine's engine.

Each is a container of Debian packages with an ssh server and a Docker engine of its own. They are reached by `ssh://`
endpoints, and reach the registry of pipeline.yaml as labengine.REGISTRY.
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
from pipeline.lab import machine_image
from pipeline.lab import machines as labengine
from pipeline.lab import ssh as labssh
from pipeline.lab.machines import REGISTRY, STORES, Plan, Seen
from pipeline.lock.service_packages import LAB

MOST, USUAL_COUNT = 9, 2
USUAL, WITHIN = 8, 120  # seconds until the machines answer
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
    """One machine: its host name, its address on the lab's network, its Docker endpoint and its image store."""

    name: str
    address: str
    endpoint: str
    store: str


@dataclass(frozen=True)
class Look:
    """A machine as it is now: its container's state, and its engine's version, "" if it does not answer over ssh."""

    machine: Machine
    state: str
    engine: str


def machines(root: Path) -> tuple[Machine, ...]:
    """The machines of a checkout's lab; none if there is no whole one. Raises HostError without an engine."""
    seen = labengine.machines(identity(root))
    return tuple(map(_machine, seen)) if _whole(root, seen) else ()


def environment(root: Path) -> dict[str, str]:
    """What a child process needs in its environment to reach the machines; none of it is a secret.

    Raises TandemError if there is no lab.
    """
    path = folder_of_ssh(root)
    if not path.is_dir():
        raise TandemError("no lab is up", hint="./doitw lab up")
    return {"PATH": os.pathsep.join([str(path), os.environ.get("PATH", os.defpath)])}


def folder_of_ssh(root: Path) -> Path:
    """Where the lab's own `ssh` lies, which is what has to come first on PATH."""
    return labssh.folder(root).resolve() / labssh.BIN


def looks(root: Path) -> tuple[Look, ...]:
    """Every machine of the lab that there is anything of, each asked over ssh at the same time."""
    seen = labengine.machines(identity(root))
    if not seen:
        return ()
    with ThreadPoolExecutor(len(seen)) as pool:
        return tuple(pool.map(lambda one: Look(_machine(one), one.state, _version(root, one)), seen))


def up(root: Path, log: Log, *, store: str = "", count: int = 0, registry: str = "") -> tuple[Machine, ...]:
    """Have a lab whose engines answer over ssh; one that stands as it is asked for is left alone, any other replaced.

    `store` is one of STORES, `count` the number of machines; if not given they are as they are, or containerd and 2.
    `registry` (host:port, as this machine sees it) is by default that of pipeline.yaml. Whatever ends it early, nothing
    half-started stays. While somebody else uses the lab it waits. Raises HostError without engine or ssh, TandemError.
    """
    _check(store, count)
    with _alone(root, log):
        return _up(root, log, store, count, registry)


def down(root: Path) -> list[str]:
    """Remove all of a checkout's lab, whole or not; returns what was removed. The machines' image stays.

    Raises BusyError while somebody makes or uses it.
    """
    with _alone(root):
        return _clear(root)


@contextmanager
def standing(root: Path, store: str, log: Log, *, registry: str = "") -> Iterator[tuple[Machine, ...]]:
    """A lab with that image store ("": any): the one that is up, or one that is taken down at the end.

    In the block nobody else has the lab, and its `ssh` comes first on this process's own PATH too, so that the SDK
    reaches the machines. Raises what up() raises, and TandemError if a lab with another store is up.
    """
    with _alone(root, log):
        there = machines(root)
        if there and store and there[0].store != store:
            raise TandemError(
                f"a lab with the image store {there[0].store} is up, and {store} is wanted", hint="./doitw lab down"
            )
        before = os.environ.get("PATH")
        try:
            found = _up(root, log, store, 0, registry)
            os.environ.update(environment(root))
            yield found
        finally:
            if before is None:
                os.environ.pop("PATH", None)
            else:
                os.environ["PATH"] = before
            if not there:
                with uninterrupted():
                    _clear(root)


def identity(root: Path) -> str:
    """What tells the lab of this checkout from another's in the same engine."""
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:6]


def _check(store: str, count: int) -> None:
    if store and store not in STORES:
        raise ConfigError(f"--store {store}: there is no such image store", hint=" or ".join(STORES))
    if not 0 <= count <= MOST:
        raise ConfigError(f"--machines {count}: a lab has 1 to {MOST} machines")


def _machine(seen: Seen) -> Machine:
    return Machine(seen.name, seen.address, f"ssh://root@{seen.address}" if seen.address else "", seen.store)


def _up(root: Path, log: Log, store: str, count: int, registry: str) -> tuple[Machine, ...]:
    """What up() does once nobody else has the lab."""
    ssh = labssh.check(labssh.folder(root).resolve())
    registry = registry or loader.load_config(root).pipeline.registry.address
    seen = labengine.machines(identity(root))
    plan = _planned(root, seen, store, count)
    if _whole(root, seen) and _as_planned(plan, seen):
        return _answering(root, ssh, registry, log)
    if seen:
        log.line("the lab that there is is not the one asked for, or not whole: it is replaced")
    _clear(root)
    try:
        _start(root, plan, log)
        return _answering(root, ssh, registry, log)
    except BaseException:
        log.line("the lab is taken down again")
        with uninterrupted():
            _clear(root)
        raise


def _planned(root: Path, seen: Sequence[Seen], store: str, count: int) -> Plan:
    stores = {one.store for one in seen}
    kept = stores.pop() if len(stores) == 1 else STORES[0]
    return Plan(store=store or kept, image=machine_image.tag(LAB.read(root)), count=count or _size(seen) or USUAL_COUNT)


def _size(seen: Sequence[Seen]) -> int:
    """Of how many machines their lab is made, however many are left."""
    return max((int(one.labels.get(labengine.COUNT, "0")) for one in seen), default=0)


def _whole(root: Path, seen: Sequence[Seen]) -> bool:
    """Whether all machines of a lab run, and let this checkout's key in."""
    key = labssh.public_key(labssh.folder(root))
    running = all(one.state == "running" and one.address for one in seen)
    return len(seen) == _size(seen) > 0 and running and {one.labels.get(labengine.KEY) for one in seen} == {key}


def _as_planned(plan: Plan, seen: Sequence[Seen]) -> bool:
    alike = all((one.store, one.labels.get(labengine.IMAGE)) == (plan.store, plan.image) for one in seen)
    return alike and [one.name for one in seen] == plan.names


def _start(root: Path, plan: Plan, log: Log) -> None:
    lab = identity(root)
    with tempfile.TemporaryDirectory(prefix="tandem-lab-") as folder, engine.failures("the lab"):
        scratch = Path(folder)
        machine_image.make(LAB.read(root), scratch, log)
        key = labssh.make_key(labssh.folder(root))
        with step(log, f"{plan.count} machine{'s' * (plan.count > 1)} with the image store {plan.store}"):
            client = engine.client()
            labengine.network(client, lab)
            for name in plan.names:
                labengine.start(client, lab, name, plan, key, labssh.host_key(scratch))


def _answering(root: Path, ssh: str, registry: str, log: Log) -> tuple[Machine, ...]:
    """Have ssh and registry lead where they should, and wait for every engine."""
    lab = identity(root)
    seen = labengine.machines(lab)
    keys = {one.address: one.labels[labengine.HOST_KEY] for one in seen}
    labssh.write(labssh.folder(root).resolve(), ssh, keys)
    with engine.failures("the lab"), step(log, "the engines answer over ssh"):
        client = engine.client()
        labengine.relay(client, lab, seen[0].labels[labengine.IMAGE], registry, log)
        for one in seen:
            if not wait_until(partial(_answers, root, one), timeout_s=WITHIN, log=log, title=one.name, usual_s=USUAL):
                said = labengine.last_words(client, lab, one.name)
                raise TandemError(f"{one.name} does not answer over ssh; the last it said:\n{said}")
    return tuple(map(_machine, seen))


def _answers(root: Path, one: Seen) -> bool:
    """Whether a machine's engine answers over ssh. Raises TandemError if the machine has ended."""
    lab = identity(root)
    if all(now.state != "running" for now in labengine.machines(lab) if now.name == one.name):
        said = labengine.last_words(engine.client(), lab, one.name)
        raise TandemError(f"{one.name} has ended; the last it said:\n{said}")
    return _version(root, one) != ""


def _version(root: Path, one: Seen) -> str:
    """The version of a machine's engine; "" if it does not answer over ssh."""
    endpoint = _machine(one).endpoint
    if one.state != "running" or not endpoint:
        return ""
    argv = ["docker", "--host", endpoint, "version", "--format", "{{.Server.Version}}"]
    try:
        return procs.capture(argv, inherit=procs.DOCKER, env=environment(root), within=20).strip()
    except Cancelled:
        raise
    except TandemError:
        return ""


def _clear(root: Path) -> list[str]:
    with engine.failures("the lab"):
        removed = labengine.remove(engine.client(), identity(root))
    there = labssh.folder(root)
    if there.exists():
        shutil.rmtree(there)
        removed.append("keys and configuration of ssh in artifacts/lab")
    return removed


@contextmanager
def _alone(root: Path, log: Log | None = None) -> Iterator[None]:
    """One at a time makes, uses or removes the lab, in any process; the others wait, or without a log get BusyError."""
    path = root / "artifacts" / "lab.lock"
    with hold_lock(path, what="the lab of this checkout", log=log, state="in use", timeout_s=math.inf):
        yield
