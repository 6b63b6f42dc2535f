"""What the local engine holds of a lab: machines, their network and volumes, and the way to the registry."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline.core import tar
from pipeline.core.log import Log
from pipeline.host import engine
from pipeline.host.engine import LABEL
from pipeline.lab.machine_image import OURS

if TYPE_CHECKING:
    from docker import DockerClient

KIND = "lab"
STORES = ("containerd", "overlay2")
HOST, PORT = "registry.lab", 5000
REGISTRY = f"{HOST}:{PORT}"
"""What the machines call the registry of pipeline.yaml, whatever its address is there."""
ID, NAME, COUNT, STORE, IMAGE, KEY, HOST_KEY, TARGET = (
    f"{LABEL}.lab{end}" for end in ("", ".machine", ".count", ".store", ".image", ".key", ".host-key", ".registry")
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a lab is made of: `count` machines of one image, with one image store."""

    store: str
    image: str
    count: int

    @property
    def names(self) -> list[str]:
        """The machines' host names."""
        return [f"spark-{number}" for number in range(1, self.count + 1)]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A machine as the engine shows it; its state is the engine's word."""

    name: str
    address: str
    state: str
    labels: Mapping[str, str]

    @property
    def store(self) -> str:
        """Its image store."""
        return self.labels.get(STORE, "")


def machines(lab: str) -> list[Seen]:
    """The machines of a lab by name, whatever their state. Raises HostError if no engine answers."""
    return sorted((_seen(lab, found) for found in _listed(lab) if NAME in found["Labels"]), key=lambda seen: seen.name)


def _listed(lab: str) -> list[Any]:
    filters = quote(json.dumps({"label": [f"{LABEL}={KIND}", f"{ID}={lab}"]}))
    found: list[Any] = engine.get("local", f"/containers/json?all=1&filters={filters}") or []
    return found


def _seen(lab: str, found: Any) -> Seen:
    networks = (found.get("NetworkSettings") or {}).get("Networks") or {}
    address = str((networks.get(called(lab)) or {}).get("IPAddress") or "")
    return Seen(name=found["Labels"][NAME], address=address, state=found["State"], labels=found["Labels"])


def called(lab: str, name: str = "") -> str:
    """What the engine calls a lab's network; with a machine's name, its container and its volume."""
    return f"{LABEL}-{KIND}-{lab}" + (f"-{name}" if name else "")


def network(client: "DockerClient", lab: str) -> str:
    """Make a lab's network, which leads nowhere else; returns this machine's own address on it."""
    labels = {LABEL: KIND, ID: lab}
    made = client.networks.create(called(lab), driver="bridge", internal=True, labels=labels)
    return _gateway(made.attrs if made.attrs.get("IPAM") else client.networks.get(called(lab)).attrs)


def _gateway(attrs: Mapping[str, Any]) -> str:
    return str(attrs["IPAM"]["Config"][0]["Gateway"]).partition("/")[0]


def start(client: "DockerClient", lab: str, name: str, plan: Plan, key: str, host_key: tuple[bytes, str]) -> None:
    """Make a machine that lets a public key in, with a host key of its own (private, public), and start it."""
    labels = {LABEL: KIND, ID: lab}
    gateway = _gateway(client.networks.get(called(lab)).attrs)
    client.volumes.create(called(lab, name), labels=labels)
    memory = int(engine.get("local", "/info")["MemTotal"])
    machine = client.containers.create(
        plan.image,
        name=called(lab, name),
        hostname=name,
        privileged=True,
        network=called(lab),
        extra_hosts={HOST: gateway},
        tmpfs={"/run": "mode=755"},
        shm_size=memory // 2,  # as a kernel has it: containers with --ipc=host use it
        volumes={called(lab, name): {"bind": "/var/lib/docker", "mode": "rw"}},
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
        f"{OURS}/authorized_keys": key.encode(),
        f"{OURS}/ssh_host_ed25519_key": host_key[0],
        "etc/docker/daemon.json": daemon(plan.store).encode(),
    }
    machine.put_archive("/", tar.archive_bytes({path: (content, 0o600) for path, content in files.items()}))
    machine.start()


def daemon(store: str) -> str:
    """The daemon.json(5) of a machine with one of STORES."""
    settings = {
        "features": {"containerd-snapshotter": store == "containerd"},
        "storage-driver": "overlayfs" if store == "containerd" else store,
        "insecure-registries": [REGISTRY],
    }
    return json.dumps(settings, indent=1) + "\n"


def relay(client: "DockerClient", lab: str, image: str, registry: str, log: Log) -> None:
    """Have a process on this machine's own network that hands REGISTRY on to `registry` (host:port, as seen here)."""
    from docker.errors import NotFound

    try:
        old = client.containers.get(called(lab, "registry"))
    except NotFound:
        pass
    else:
        if old.status == "running" and (old.labels.get(TARGET), old.labels.get(IMAGE)) == (registry, image):
            return
        old.remove(force=True)
    gateway = _gateway(client.networks.get(called(lab)).attrs)
    client.containers.run(
        image,
        ["socat", f"TCP-LISTEN:{PORT},bind={gateway},reuseaddr,fork", f"TCP:{registry}"],
        name=called(lab, "registry"),
        detach=True,
        network_mode="host",
        labels={LABEL: KIND, ID: lab, IMAGE: image, TARGET: registry},
    )
    log.line(f"{REGISTRY} in the machines is {registry} here")


def remove(client: "DockerClient", lab: str) -> list[str]:
    """Remove all that is labelled as a lab's; returns what was removed, each with its kind."""
    from docker.errors import NotFound

    filters: dict[str, Any] = {"label": [f"{LABEL}={KIND}", f"{ID}={lab}"]}
    listed: list[tuple[str, Any]] = [
        *(("container", found) for found in client.containers.list(all=True, filters=filters, ignore_removed=True)),
        *(("volume", found) for found in client.volumes.list(filters=filters)),
        *(("network", found) for found in client.networks.list(filters=filters)),
    ]
    removed = []
    for kind, found in listed:
        try:
            match kind:
                case "container":
                    engine.remove_container(found)
                case "volume":
                    found.remove(force=True)
                case _:
                    found.remove()
        except NotFound:
            continue
        removed.append(f"{kind} {found.name}")
    return removed


def last_words(client: "DockerClient", lab: str, name: str) -> str:
    """The last that a machine's engine and ssh server have said."""
    text: bytes = client.containers.get(called(lab, name)).logs(tail=15)
    return text.decode(errors="replace").rstrip()
