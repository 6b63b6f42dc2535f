"""Prepares two machines for the launchers of every era: what they have, and a substitute for what they lack."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pipeline.config.launcher_contract import PORTS
from pipeline.core.attempt_error import AttemptError
from pipeline.core.errors import HostError, TandemError
from pipeline.core.log import Log
from pipeline.smoke.containers import PROBE_FOLDER, PROBES
from pipeline.smoke.era_commands import NOFILE, LaunchParameters
from pipeline.smoke.era_machines import ERA_LABEL, ClusterMachine, DockerHost
from pipeline.smoke.verdict import last_lines

CONTAINERD = "io.containerd.snapshotter"
NO_RDMA = "mlx5_0"
"""The name of an RDMA device that a launch is told where there is none."""
SHIM = f"{PROBE_FOLDER}/emulation"
FACTS = re.compile(r"^@@machine (\{.*\})$", re.MULTILINE)
TOKEN = re.compile(r"RAY_AUTH_MODE=token")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSetup:
    """Two machines that are ready for a launch, the head first."""

    hosts: tuple[DockerHost, DockerHost]
    parameters: tuple[LaunchParameters, LaunchParameters]
    workdir: str
    """The image's WORKDIR."""
    emulated: bool
    """An emulator runs the image on a machine at least."""
    closed: bool
    """The operator's docker arguments bring a token for Ray."""
    substitutions: tuple[str, ...]
    """All that stands in for something else, in words."""

    @property
    def head(self) -> DockerHost:
        """The head's Docker engine."""
        return self.hosts[0]

    def pairs(self) -> Iterator[tuple[DockerHost, LaunchParameters]]:
        """Returns each machine's Docker engine with its launch parameters, the head first."""
        return zip(self.hosts, self.parameters, strict=True)


@contextmanager
def prepare_machines(
    machines: Sequence[ClusterMachine],
    env: Mapping[str, str],
    workdir: str,
    arguments: Sequence[str],
    known: Sequence[str],
    log: Log,
) -> Iterator[LaunchSetup]:
    """Prepares these machines for launches, and removes everything from them afterwards.

    `arguments` are the operator's own docker arguments; `known` are the substitutions of the machines themselves.
    Raises HostError if a machine cannot take part, or if the machines keep images in different stores, since no image
    then has the same Id in both; TandemError if a machine does not have the image.
    """
    if len(machines) != 2:
        raise HostError(f"launchers need two machines, a head and a worker; got {len(machines)}")
    hosts = [DockerHost(machine, env, log) for machine in machines]
    for host in hosts:
        host.sweep()
    _refuse_different_stores(hosts)
    emulated = [_is_emulated(host) for host in hosts]
    if any(emulated):
        platform = _inspect_image(hosts[0], "{{.Os}}/{{.Architecture}}")
        env = {**env, "DOCKER_DEFAULT_PLATFORM": platform}
        hosts = [DockerHost(machine, env, log, emulated=flag) for machine, flag in zip(machines, emulated, strict=True)]
    with ExitStack() as tidying:
        for host in hosts:
            tidying.callback(host.clear)
        shims = [_install_shim(host, tidying) if any(emulated) else () for host in hosts]
        notes = [*known, *_notes(emulated=any(emulated))]
        parameters = _launch_parameters(hosts, [("--label", ERA_LABEL, *shim, *arguments) for shim in shims], notes)
        yield LaunchSetup(
            hosts=(hosts[0], hosts[1]),
            parameters=parameters,
            workdir=workdir,
            emulated=any(emulated),
            closed=any(TOKEN.search(word) for word in arguments),
            substitutions=tuple(dict.fromkeys(notes)),
        )


def _notes(*, emulated: bool) -> Iterator[str]:
    yield "the host's cache folders are new volumes of each container"
    yield f"`--label {ERA_LABEL}` is among the operator's docker arguments, so that what a killed run leaves is found"
    if emulated:
        yield (
            f"an emulator runs the image: {SHIM} is mounted and in PYTHONPATH, DOCKER_DEFAULT_PLATFORM is set,"
            " readiness is waited for longer than 60 s, and the worker starts when the head is ready"
        )


def _launch_parameters(
    hosts: Sequence[DockerHost], extra: Sequence[tuple[str, ...]], notes: list[str]
) -> tuple[LaunchParameters, LaunchParameters]:
    """Returns the launch parameters of each machine; adds the substitutions to `notes`."""
    facts = [_machine_facts(host, words, notes) for host, words in zip(hosts, extra, strict=True)]
    eth_if, ib_if = str(facts[0]["interface"]), ",".join(facts[0]["rdma"])
    notes.append(f"--eth-if is the head's {eth_if}, on both machines, as launchers have it")
    if not ib_if:
        ib_if = NO_RDMA
        notes.append(f"the head has no RDMA device: --ib-if is {NO_RDMA}, which nothing of the check opens")
    for fact, host in zip(facts, hosts, strict=True):
        if fact["interface"] != eth_if:
            raise HostError(
                f"{host.machine.name} has {host.machine.address} on {fact['interface']}, the head its own on"
                f" {eth_if}: launchers give one name to both, so their clusters fail on these machines",
                hint="name the interfaces alike (udev, netplan), or deploy with Tandem, which asks each machine",
            )
    head, worker = (
        LaunchParameters(
            image=host.machine.image,
            own=host.machine.address,
            head=hosts[0].machine.address,
            eth_if=eth_if,
            ib_if=ib_if,
            nofile=min(fact["nofile"], NOFILE),
            extra=words,
        )
        for host, words, fact in zip(hosts, extra, facts, strict=True)
    )
    return head, worker


def _refuse_different_stores(hosts: Sequence[DockerHost]) -> None:
    """Raises HostError for different stores: an Id is a manifest's digest in one, a configuration's in the other."""
    stores = [_image_store(host) for host in hosts]
    if len(set(stores)) > 1:
        described = ", ".join(f"{host.machine.name} {store}" for host, store in zip(hosts, stores, strict=True))
        raise HostError(
            f"the machines keep images in different stores ({described}): no image has the same Id in both, and"
            " launch-cluster.sh refuses to start where Ids differ",
            hint='have `"features": {"containerd-snapshotter": …}` alike in /etc/docker/daemon.json of both',
        )


def _image_store(host: DockerHost) -> str:
    result = host.docker(["info", "--format", "{{.Driver}} {{json .DriverStatus}}"])
    if result.status != 0:
        raise HostError(f"{host.machine.name}: its Docker engine does not answer: {last_lines(result.output)}")
    driver = result.output.strip().splitlines()[-1]
    return "containerd" if CONTAINERD in driver else driver.partition(" ")[0]


def _inspect_image(host: DockerHost, template: str) -> str:
    result = host.docker(["image", "inspect", "--format", template, host.machine.image])
    if result.status != 0:
        raise TandemError(
            f"{host.machine.name} has no image {host.machine.image}: {last_lines(result.output)}", hint="push it first"
        )
    return result.output.strip().splitlines()[-1]


def _is_emulated(host: DockerHost) -> bool:
    architecture = _inspect_image(host, "{{.Architecture}}")
    engine = host.docker(["version", "--format", "{{.Server.Arch}}"]).output.strip()
    return architecture != engine


def _install_shim(host: DockerHost, tidying: ExitStack) -> tuple[str, ...]:
    """Copies what Ray needs under an emulator to a machine; returns the docker arguments that use it."""
    volume = f"tandem-eras-{uuid4().hex[:8]}"
    tidying.callback(host.docker, ["volume", "rm", "--force", volume], tidying=True)
    tidying.callback(host.clear)
    image = host.machine.image
    mount = f"{volume}:{SHIM}"
    try:
        host.must(["volume", "create", "--label", ERA_LABEL, volume], "the shim has no volume")
        output = host.must(
            ["create", "--label", ERA_LABEL, "--volume", mount, image, "true"], "the shim has no container"
        )
        container = output.splitlines()[-1]
        host.must(["cp", str(PROBES / "emulation" / "sitecustomize.py"), f"{container}:{SHIM}/"], "the shim")
        host.must(["rm", "--force", container], "the shim's container")
    except AttemptError as error:
        raise HostError(str(error)) from error
    baked = json.loads(_inspect_image(host, "{{json .Config.Env}}")) or []
    before = [entry.removeprefix("PYTHONPATH=") for entry in baked if entry.startswith("PYTHONPATH=")]
    return ("-v", f"{mount}:ro", "-e", "PYTHONPATH=" + ":".join([SHIM, *before]))


def _machine_facts(host: DockerHost, extra: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """Returns what probes/machine_facts.py finds on a machine; adds to `notes` if it has a lower limit of open files.

    Raises HostError if the image cannot run the probe, if no interface has the address, or if a port is in use.
    """
    name, address = host.machine.name, host.machine.address
    ports = [str(port) for port in PORTS]
    program = (PROBES / "machine_facts.py").read_text(encoding="utf-8")
    words = ["--rm", "--network", "host", "--entrypoint=", *extra, host.machine.image, "python3", "-c", program]
    result = host.docker(["run", "--ulimit", f"nofile={NOFILE}", *words, address, *ports])
    raised = result.status == 0
    if not raised:
        result = host.docker(["run", *words, address, *ports])
    match = FACTS.search(result.output)
    if result.status != 0 or match is None:
        raise HostError(
            f"{name}: a container of the image cannot say what the machine has: {last_lines(result.output)}"
        )
    facts: dict[str, Any] = json.loads(match[1])
    if not facts["interface"]:
        raise HostError(f"{name}: no interface has {address}", hint="give the address on the cluster's network")
    if facts["taken"]:
        raise HostError(
            f"{name}: something listens on {', '.join(map(str, facts['taken']))} already, and launchers do not look",
            hint=f"stop what has them: launchers use {', '.join(ports)}",
        )
    if not raised:
        notes.append(
            f"--ulimit nofile={NOFILE} is {facts['nofile']} on {name}, whose hard limit is lower and cannot be raised"
        )
    return facts
