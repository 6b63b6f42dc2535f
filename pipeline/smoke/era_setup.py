"""Two machines made ready for the launchers of every era: what is on them, and what has to stand in for what is not."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pipeline.config.launcher_contract import PORTS
from pipeline.core.errors import HostError, TandemError
from pipeline.core.log import Log
from pipeline.smoke.containers import INSIDE, PROBES
from pipeline.smoke.era_commands import NOFILE, Terms
from pipeline.smoke.era_machines import OURS, Endpoint, Fault, Station, last

CONTAINERD = "io.containerd.snapshotter"
NO_RDMA = "mlx5_0"
SHIM = f"{INSIDE}/emulation"
FACTS = re.compile(r"^@@machine (\{.*\})$", re.MULTILINE)
TOKEN = re.compile(r"RAY_AUTH_MODE=token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Two stations, the head first, with the terms of each; all that was put in another's place is in words."""

    stations: tuple[Station, Station]
    terms: tuple[Terms, Terms]
    workdir: str
    emulated: bool
    closed: bool
    substitutions: tuple[str, ...]

    @property
    def head(self) -> Station:
        """The station of the head."""
        return self.stations[0]

    def pairs(self) -> Iterator[tuple[Station, Terms]]:
        """Each station with its terms, the head first."""
        return zip(self.stations, self.terms, strict=True)


@contextmanager
def prepared(
    machines: Sequence[Endpoint],
    env: Mapping[str, str],
    workdir: str,
    arguments: Sequence[str],
    known: Sequence[str],
    log: Log,
) -> Iterator[Field]:
    """A field for these machines; whatever was put on them is gone afterwards.

    `arguments` are the operator's own docker arguments, `known` what the machines themselves stand in for. Raises
    HostError where a machine cannot take part, or where image stores of different kinds keep equal Ids from existing;
    TandemError where a machine does not have the image.
    """
    if len(machines) != 2:
        raise HostError(f"launchers need two machines, a head and a worker; there are {len(machines)}")
    stations = [Station(machine, env, log) for machine in machines]
    for station in stations:
        station.sweep()
    _alike(stations)
    emulated = [_emulated(station) for station in stations]
    if any(emulated):
        platform = _shown(stations[0], "{{.Os}}/{{.Architecture}}")
        env = {**env, "DOCKER_DEFAULT_PLATFORM": platform}
        stations = [Station(machine, env, log, emulated=runs) for machine, runs in zip(machines, emulated, strict=True)]
    with ExitStack() as tidying:
        for station in stations:
            tidying.callback(station.clear)
        shims = [_shim(station, tidying) if any(emulated) else () for station in stations]
        notes = [*known, *_notes(emulated=any(emulated))]
        terms = _terms(stations, [("--label", OURS, *shim, *arguments) for shim in shims], notes)
        yield Field(
            stations=(stations[0], stations[1]),
            terms=terms,
            workdir=workdir,
            emulated=any(emulated),
            closed=any(TOKEN.search(word) for word in arguments),
            substitutions=tuple(dict.fromkeys(notes)),
        )


def _notes(*, emulated: bool) -> Iterator[str]:
    yield "the host's cache folders are new volumes of each container"
    yield f"`--label {OURS}` is among the operator's docker arguments, so that what a killed run leaves is found"
    if emulated:
        yield (
            f"an emulator runs the image: {SHIM} is mounted and in PYTHONPATH, DOCKER_DEFAULT_PLATFORM is set,"
            " readiness is waited for longer than 60 s, and the worker starts when the head is ready"
        )


def _terms(stations: Sequence[Station], extra: Sequence[tuple[str, ...]], notes: list[str]) -> tuple[Terms, Terms]:
    """What each machine's launch is told; `notes` grow by what had to be put in another's place."""
    facts = [_facts(station, words, notes) for station, words in zip(stations, extra, strict=True)]
    eth_if, ib_if = str(facts[0]["interface"]), ",".join(facts[0]["rdma"])
    notes.append(f"--eth-if is the head's {eth_if}, on both machines, as launchers have it")
    if not ib_if:
        ib_if = NO_RDMA
        notes.append(f"the head has no RDMA device: --ib-if is {NO_RDMA}, which nothing of the check opens")
    for fact, station in zip(facts, stations, strict=True):
        if fact["interface"] != eth_if:
            raise HostError(
                f"{station.endpoint.name} has {station.endpoint.address} on {fact['interface']}, the head its own on"
                f" {eth_if}: launchers give one name to both, so their clusters fail on these machines",
                hint="name the interfaces alike (udev, netplan), or deploy with Tandem, which asks each machine",
            )
    head, worker = (
        Terms(
            image=station.endpoint.image,
            own=station.endpoint.address,
            head=stations[0].endpoint.address,
            eth_if=eth_if,
            ib_if=ib_if,
            nofile=min(fact["nofile"], NOFILE),
            extra=words,
        )
        for station, words, fact in zip(stations, extra, facts, strict=True)
    )
    return head, worker


def _alike(stations: Sequence[Station]) -> None:
    """Refuse image stores of different kinds: the Id is a manifest's digest in one, a configuration's in the other."""
    stores = [_store(station) for station in stations]
    if len(set(stores)) > 1:
        has = ", ".join(f"{station.endpoint.name} {store}" for station, store in zip(stations, stores, strict=True))
        raise HostError(
            f"the machines keep images in different stores ({has}): no image has the same Id in both, and"
            " launch-cluster.sh refuses to start where Ids differ",
            hint='have `"features": {"containerd-snapshotter": …}` alike in /etc/docker/daemon.json of both',
        )


def _store(station: Station) -> str:
    said = station.docker(["info", "--format", "{{.Driver}} {{json .DriverStatus}}"])
    if said.status != 0:
        raise HostError(f"{station.endpoint.name}: its Docker engine does not answer: {last(said.text)}")
    driver = said.text.strip().splitlines()[-1]
    return "containerd" if CONTAINERD in driver else driver.partition(" ")[0]


def _shown(station: Station, template: str) -> str:
    said = station.docker(["image", "inspect", "--format", template, station.endpoint.image])
    if said.status != 0:
        raise TandemError(
            f"{station.endpoint.name} has no image {station.endpoint.image}: {last(said.text)}", hint="push it first"
        )
    return said.text.strip().splitlines()[-1]


def _emulated(station: Station) -> bool:
    architecture = _shown(station, "{{.Architecture}}")
    engine = station.docker(["version", "--format", "{{.Server.Arch}}"]).text.strip()
    return architecture != engine


def _shim(station: Station, tidying: ExitStack) -> tuple[str, ...]:
    """Bring what Ray needs under an emulator to a machine; returns the operator's docker arguments that use it."""
    volume = f"tandem-eras-{uuid4().hex[:8]}"
    tidying.callback(station.docker, ["volume", "rm", "--force", volume], tidying=True)
    tidying.callback(station.clear)
    image = station.endpoint.image
    mount = f"{volume}:{SHIM}"
    try:
        station.must(["volume", "create", "--label", OURS, volume], "the shim has no volume")
        made = station.must(["create", "--label", OURS, "--volume", mount, image, "true"], "the shim has no container")
        container = made.splitlines()[-1]
        station.must(["cp", str(PROBES / "emulation" / "sitecustomize.py"), f"{container}:{SHIM}/"], "the shim")
        station.must(["rm", "--force", container], "the shim's container")
    except Fault as fault:
        raise HostError(str(fault)) from fault
    baked = json.loads(_shown(station, "{{json .Config.Env}}")) or []
    before = [entry.removeprefix("PYTHONPATH=") for entry in baked if entry.startswith("PYTHONPATH=")]
    return ("-v", f"{mount}:ro", "-e", "PYTHONPATH=" + ":".join([SHIM, *before]))


def _facts(station: Station, extra: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """What the probe says of a machine. Raises HostError where the image cannot run it, or the address is not there."""
    name, address = station.endpoint.name, station.endpoint.address
    ports = [str(port) for port in PORTS]
    program = (PROBES / "machine_facts.py").read_text(encoding="utf-8")
    words = ["--rm", "--network", "host", "--entrypoint=", *extra, station.endpoint.image, "python3", "-c", program]
    said = station.docker(["run", "--ulimit", f"nofile={NOFILE}", *words, address, *ports])
    raised = said.status == 0
    if not raised:
        said = station.docker(["run", *words, address, *ports])
    found = FACTS.search(said.text)
    if said.status != 0 or found is None:
        raise HostError(f"{name}: a container of the image cannot say what the machine has: {last(said.text)}")
    facts: dict[str, Any] = json.loads(found[1])
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
