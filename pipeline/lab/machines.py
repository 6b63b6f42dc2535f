"""The parts of a lab in the local engine: machines, their network and volumes, and the relay to the registry."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline.core import tar
from pipeline.core.log import Log
from pipeline.host import engine
from pipeline.host.engine import LABEL
from pipeline.lab.machine_image import OUR_FOLDER

if TYPE_CHECKING:
    from docker import DockerClient

KIND = "lab"
STORES = ("containerd", "overlay2")
HOST, PORT = "registry.lab", 5000
REGISTRY = f"{HOST}:{PORT}"
"""The machines' name for the registry of pipeline.yaml, whatever its address is there."""
ID, NAME, COUNT, STORE, IMAGE, KEY, HOST_KEY, RELAY_TARGET = (
    f"{LABEL}.lab{end}" for end in ("", ".machine", ".count", ".store", ".image", ".key", ".host-key", ".registry")
)
"""The labels of a lab's parts."""


@dataclass(frozen=True, kw_only=True)
class LabPlan:
    """What a lab is to be made of."""

    store: str
    """The image store of every machine, one of STORES."""
    image: str
    """The image of every machine."""
    count: int
    """The number of machines."""

    @property
    def names(self) -> list[str]:
        """The host names of the machines."""
        return [f"spark-{number}" for number in range(1, self.count + 1)]


@dataclass(frozen=True, kw_only=True)
class LabContainer:
    """The container of a machine."""

    name: str
    """The machine's host name."""
    address: str
    """Its address on the lab's network; empty if it has none."""
    state: str
    """Its state, as Docker names it."""
    labels: Mapping[str, str]

    @property
    def store(self) -> str:
        """The image store of the machine."""
        return self.labels.get(STORE, "")


def find_containers(lab: str) -> list[LabContainer]:
    """Returns the machines of a lab in the order of their names. Raises HostError if no engine answers."""
    entries = [entry for entry in _list_containers(lab) if NAME in entry["Labels"]]
    return sorted((_container(lab, entry) for entry in entries), key=lambda container: container.name)


def _list_containers(lab: str) -> list[Any]:
    filters = quote(json.dumps({"label": [f"{LABEL}={KIND}", f"{ID}={lab}"]}))
    entries: list[Any] = engine.get("local", f"/containers/json?all=1&filters={filters}") or []
    return entries


def _container(lab: str, entry: Any) -> LabContainer:
    networks = (entry.get("NetworkSettings") or {}).get("Networks") or {}
    address = str((networks.get(engine_name(lab)) or {}).get("IPAddress") or "")
    return LabContainer(name=entry["Labels"][NAME], address=address, state=entry["State"], labels=entry["Labels"])


def engine_name(lab: str, name: str = "") -> str:
    """Returns the name of a lab's network, or with a machine's name that of its container and its volume."""
    return f"{LABEL}-{KIND}-{lab}" + (f"-{name}" if name else "")


def create_network(client: "DockerClient", lab: str) -> str:
    """Creates a lab's network, which leads nowhere else; returns this machine's own address on it."""
    labels = {LABEL: KIND, ID: lab}
    network = client.networks.create(engine_name(lab), driver="bridge", internal=True, labels=labels)
    return _gateway(network.attrs if network.attrs.get("IPAM") else client.networks.get(engine_name(lab)).attrs)


def _gateway(attrs: Mapping[str, Any]) -> str:
    return str(attrs["IPAM"]["Config"][0]["Gateway"]).partition("/")[0]


def start_machine(
    client: "DockerClient", lab: str, name: str, plan: LabPlan, key: str, host_key: tuple[bytes, str]
) -> None:
    """Creates and starts a machine.

    It accepts the public key `key`, and has the host key `host_key` (private and public half).
    """
    labels = {LABEL: KIND, ID: lab}
    gateway = _gateway(client.networks.get(engine_name(lab)).attrs)
    client.volumes.create(engine_name(lab, name), labels=labels)
    memory = int(engine.get("local", "/info")["MemTotal"])
    machine = client.containers.create(
        plan.image,
        name=engine_name(lab, name),
        hostname=name,
        privileged=True,
        network=engine_name(lab),
        extra_hosts={HOST: gateway},
        tmpfs={"/run": "mode=755"},
        shm_size=memory // 2,  # as a kernel has it: containers with --ipc=host use it
        volumes={engine_name(lab, name): {"bind": "/var/lib/docker", "mode": "rw"}},
        labels={
            **labels,
            NAME: name,
            COUNT: str(plan.count),
            STORE: plan.store,
            IMAGE: plan.image,
            KEY: key,
            HOST_KEY: host_key[1],
        },
    )
    files = {
        f"{OUR_FOLDER}/authorized_keys": key.encode(),
        f"{OUR_FOLDER}/ssh_host_ed25519_key": host_key[0],
        "etc/docker/daemon.json": daemon_json(plan.store).encode(),
    }
    machine.put_archive("/", tar.archive_bytes({path: (content, 0o600) for path, content in files.items()}))
    machine.start()


def daemon_json(store: str) -> str:
    """Returns the daemon.json of a machine's Docker engine with one of STORES."""
    settings = {
        "features": {"containerd-snapshotter": store == "containerd"},
        "storage-driver": "overlayfs" if store == "containerd" else store,
        "insecure-registries": [REGISTRY],
    }
    return json.dumps(settings, indent=1) + "\n"


def start_relay(client: "DockerClient", lab: str, image: str, registry: str, log: Log) -> None:
    """Starts a container on this machine's own network that forwards REGISTRY to `registry` (host:port, as seen here).

    A relay that runs and leads there stays.
    """
    from docker.errors import NotFound

    try:
        old = client.containers.get(engine_name(lab, "registry"))
    except NotFound:
        pass
    else:
        if old.status == "running" and (old.labels.get(RELAY_TARGET), old.labels.get(IMAGE)) == (registry, image):
            return
        old.remove(force=True)
    gateway = _gateway(client.networks.get(engine_name(lab)).attrs)
    client.containers.run(
        image,
        ["socat", f"TCP-LISTEN:{PORT},bind={gateway},reuseaddr,fork", f"TCP:{registry}"],
        name=engine_name(lab, "registry"),
        detach=True,
        network_mode="host",
        labels={LABEL: KIND, ID: lab, IMAGE: image, RELAY_TARGET: registry},
    )
    log.line(f"{REGISTRY} in the machines is {registry} here")


def remove_lab(client: "DockerClient", lab: str) -> list[str]:
    """Removes everything with a lab's label; returns what was removed, as in `volume tandem-lab-0a1b2c-spark-1`."""
    from docker.errors import NotFound

    filters: dict[str, Any] = {"label": [f"{LABEL}={KIND}", f"{ID}={lab}"]}
    listed: list[tuple[str, Any]] = [
        *(("container", part) for part in client.containers.list(all=True, filters=filters, ignore_removed=True)),
        *(("volume", part) for part in client.volumes.list(filters=filters)),
        *(("network", part) for part in client.networks.list(filters=filters)),
    ]
    removed = []
    for kind, part in listed:
        try:
            match kind:
                case "container":
                    engine.remove_container(part)
                case "volume":
                    part.remove(force=True)
                case _:
                    part.remove()
        except NotFound:
            continue
        removed.append(f"{kind} {part.name}")
    return removed


def last_output(client: "DockerClient", lab: str, name: str) -> str:
    """Returns the last lines of a machine's engine and ssh server."""
    text: bytes = client.containers.get(engine_name(lab, name)).logs(tail=15)
    return text.decode(errors="replace").rstrip()
