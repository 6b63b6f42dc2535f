"""A cluster's containers: made and started from their plans, looked at, listened to, and taken away again."""

import io
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cluster.plan import ASSIGNED, GO, INSIDE, TOKEN, Plan
from pipeline.core import tar as archives
from pipeline.core.log import Log
from pipeline.host import engine
from pipeline.host.engine import LABEL

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

SHM_BYTES = 2 << 30
LEAST_SHARES = 2
"""Of 1024, the usual: the least that Linux knows (cgroup v1 cpu.shares; engines translate it for v2)."""
Heard = Callable[[str, str], None]
"""Called with a node's name and one line of its container's output."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a look finds of one node's container. `published` is the API's port on the node's loopback."""

    container: str
    node: str
    status: str
    exit_code: int
    oom_killed: bool
    started: str
    labels: Mapping[str, str]
    published: int | None


@contextmanager
def session(plans: Sequence[Plan]) -> Iterator["Nodes"]:
    """The engines of all nodes, for deeds; their own failures become HostError and TandemError."""
    with ExitStack() as stack:
        endpoints = {plan.endpoint for plan in plans}
        clients = {endpoint: stack.enter_context(closing(engine.client(endpoint))) for endpoint in endpoints}
        stack.enter_context(engine.failures())
        yield Nodes(plans, clients)


class Nodes:
    """The containers of some plans on their engines."""

    def __init__(self, plans: Sequence[Plan], clients: Mapping[str, "DockerClient"]) -> None:
        self.plans = tuple(plans)
        self._clients = clients

    def pull(self, log: Log) -> None:
        """Have every node's engine hold the image under its digest; what is there is not fetched again."""
        from docker.errors import ImageNotFound

        for endpoint, plan in {plan.endpoint: plan for plan in self.plans}.items():
            images = self._clients[endpoint].images
            try:
                images.get(plan.image)
            except ImageNotFound:
                log.line(f"{endpoint}: pulling {plan.image}")
                images.pull(plan.image, platform=plan.platform)

    def create(self, token: str) -> None:
        """Make network and containers, put our files and the token into them; nothing starts yet."""
        for endpoint, network in {(plan.endpoint, plan.network) for plan in self.plans}:
            if network is not None:
                labels = {LABEL: "node", f"{LABEL}.cluster": self.plans[0].cluster}
                self._clients[endpoint].networks.create(network, labels=labels)
        for plan in self.plans:
            container = self._clients[plan.endpoint].containers.create(plan.image, list(plan.command), **_options(plan))
            container.put_archive("/", archive({**plan.files, TOKEN: token.encode()}))

    def start(self, plan: Plan) -> None:
        """Start one node's container."""
        self._container(plan).start()

    def release(self, plan: Plan) -> None:
        """Give the word on which the node's engine starts."""
        self._container(plan).put_archive("/", archive({GO: b""}))

    def found(self, plan: Plan) -> Found | None:
        """What there is of the node's container now."""
        from docker.errors import NotFound

        try:
            return found(self._container(plan).attrs)
        except NotFound:
            return None

    def run(self, plan: Plan, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command in the node's container to its end; its status and its output."""
        status, output = self._container(plan).exec_run(list(argv))
        assert status is not None
        assert isinstance(output, bytes)
        return status, output.decode(errors="replace")

    def once(self, plan: Plan, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command in a container of the node's image that is gone afterwards; its status and its output."""
        from docker.errors import APIError

        labels = {LABEL: "node", f"{LABEL}.cluster": plan.cluster}
        made = self._clients[plan.endpoint].containers.create(
            plan.image, list(argv), entrypoint=[], labels=labels, platform=plan.platform, network_mode="none"
        )
        try:
            made.start()
            status = int(made.wait()["StatusCode"])
            return status, bytes(made.logs()).decode(errors="replace")
        except APIError as error:
            return 126, str(error.explanation or error)
        finally:
            made.remove(force=True, v=True)

    def listen(self, plan: Plan, heard: Heard) -> threading.Thread:
        """Start to hand over every line that the node's container writes, until it ends."""
        container = self._container(plan)
        thread = threading.Thread(target=_pump, args=(container, plan.node, heard), daemon=True)
        thread.start()
        return thread

    def give_way(self) -> None:
        """Let containers that stand in for machines have what processors all else leaves.

        Real machines have nothing else to do; on this one a developer does, and looks at the world take longer beside
        an engine that works (and, in an image without a compiler for emulation/patience.c, beside one that waits).
        """
        for plan in self.plans:
            if plan.network is not None:
                self._container(plan).update(cpu_shares=LEAST_SHARES)

    def remove(self) -> list[str]:
        """Take away every container and network of the cluster, running or not; returns their names."""
        return [name for client in self._clients.values() for name in clear(client, self.plans[0].cluster)]

    def fetch(self, plan: Plan, path: str) -> bytes | None:
        """A tar of a file or folder of the node's container, or None if it has no such thing."""
        from docker.errors import APIError

        try:
            chunks, _ = self._container(plan).get_archive(path)
            return b"".join(chunks)
        except APIError:
            return None

    def _container(self, plan: Plan) -> "Container":
        return self._clients[plan.endpoint].containers.get(plan.container)


def clear(client: "DockerClient", cluster: str) -> list[str]:
    """Remove a cluster's containers, then its networks, from one engine; returns their names."""
    from docker.errors import NotFound

    ours: dict[str, str | list[str] | bool] = {"label": [f"{LABEL}=node", f"{LABEL}.cluster={cluster}"]}
    removed: list[str] = []
    for container in client.containers.list(all=True, filters=ours, ignore_removed=True):
        with suppress(NotFound):
            engine.remove(container)
            removed.append(str(container.name))
    for network in client.networks.list(filters=ours):
        with suppress(NotFound):
            network.remove()
            removed.append(str(network.name))
    return removed


def found(attrs: Mapping[str, Any]) -> Found:
    """What the engine's description of a container says of it."""
    state, labels = attrs["State"], attrs["Config"]["Labels"] or {}
    ports = [binding for bindings in (attrs["NetworkSettings"]["Ports"] or {}).values() for binding in bindings or []]
    return Found(
        container=str(attrs["Name"]).removeprefix("/"),
        node=labels.get(f"{LABEL}.node", ""),
        status=str(state["Status"]),
        exit_code=int(state.get("ExitCode", 0)),
        oom_killed=bool(state.get("OOMKilled")),
        started=str(state.get("StartedAt", "")),
        labels=labels,
        published=int(ports[0]["HostPort"]) if ports else None,
    )


def difference(plan: Plan, there: Found | None) -> str | None:
    """Why what is there is not the node that the plan wants; None if it is."""
    if there is None:
        return f"{plan.container} is not there"
    if there.status != "running":
        return f"{plan.container} is {there.status}"
    for label, wanted in plan.labels.items():
        if there.labels.get(label) != wanted:
            return f"{plan.container} has {label}={there.labels.get(label)}"
    return None


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of files by path below INSIDE; secrets are for root only."""
    there = INSIDE.removeprefix("/")
    return archives.packed(
        {f"{there}/{path}": (content, 0o600 if path == TOKEN else 0o644) for path, content in files.items()}
    )


def unpack(tar: bytes, into: Path) -> None:
    """Write the plain files of a tar below a folder, by their own names."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        for member in opened:
            content = opened.extractfile(member) if member.isfile() else None
            if content is not None:
                into.mkdir(parents=True, exist_ok=True)
                (into / Path(member.name).name).write_bytes(content.read())


def _options(plan: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {
        "name": plan.container,
        "hostname": plan.container if plan.network else None,
        "labels": plan.labels,
        "environment": dict(plan.env),
        "platform": plan.platform,
        "entrypoint": [],
        "shm_size": SHM_BYTES,
        "network": plan.network or "host",
        "volumes": {path: {"bind": inside, "mode": "ro"} for path, inside in plan.mounts.items()},
    }
    if plan.published is not None:
        port = plan.serve[plan.serve.index("--port") + 1] if plan.serve else plan.published
        outside = None if plan.published == ASSIGNED else int(plan.published)
        options["ports"] = {f"{port}/tcp": ("127.0.0.1", outside)}
    return options


def _pump(container: "Container", node: str, heard: Heard) -> None:
    rest = b""
    try:
        for chunk in container.logs(stream=True, follow=True):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                heard(node, line.decode(errors="replace").rstrip("\r"))
    except Exception as error:  # the container was removed under the stream: what came is what there is
        heard(node, f"(its log ended: {type(error).__name__})")
    if rest:
        heard(node, rest.decode(errors="replace"))


def logs_of(client: "DockerClient", container: str, *, follow: bool) -> Iterable[bytes]:
    """What a container has written, and with `follow` what it writes from now on."""
    there = client.containers.get(container)
    return there.logs(stream=True, follow=True) if follow else [there.logs()]
