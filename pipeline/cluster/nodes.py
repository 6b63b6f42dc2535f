"""The containers of a cluster: created and started from their plans, inspected, followed, and removed."""

import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cluster.plan import (
    ANY_PORT,
    SECRETS_FILE,
    SECRETS_FOLDER,
    START_FILE,
    TANDEM_FOLDER,
    TOKEN_FILE,
    NodePlan,
)
from pipeline.core import redact
from pipeline.core import tar as archives
from pipeline.core.log import Log
from pipeline.host import engine
from pipeline.host.engine import LABEL

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from docker.types import Mount

SHM_BYTES = 2 << 30
LOWEST_CPU_SHARES = 2
"""The lowest value that Linux knows (cgroup v1 cpu.shares; engines translate it for v2); the default is 1024."""
CANNOT_START = 126
"""The exit status that a shell gives to a command that cannot be executed."""
NO_SUCH_SOURCE = "bind source path does not exist"
"""What an engine says if a path that it is to mount is not on its machine."""
SECRETS_LABEL = f"{LABEL}.secrets"
"""The label of a container with secrets. Its value is random, so that another container is told from this one."""
LineHandler = Callable[[str, str], None]
"""Is called with a node's name and one line of its container's output."""


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """The state of one node's container."""

    container: str
    node: str
    status: str
    exit_code: int
    oom_killed: bool
    started: str
    labels: Mapping[str, str]
    published: int | None
    """The port of the node's loopback that serves the API."""


@contextmanager
def open_nodes(plans: Sequence[NodePlan]) -> Iterator["Nodes"]:
    """Connects to the engines of all nodes. Raises HostError if one goes away, TandemError if one refuses."""
    with ExitStack() as stack:
        endpoints = {plan.endpoint for plan in plans}
        clients = {endpoint: stack.enter_context(closing(engine.client(endpoint))) for endpoint in endpoints}
        stack.enter_context(engine.failures())
        yield Nodes(plans, clients)


class Nodes:
    """The containers of some plans on their engines."""

    def __init__(self, plans: Sequence[NodePlan], clients: Mapping[str, "DockerClient"]) -> None:
        self.plans = tuple(plans)
        self._clients = clients

    def pull_image(self, log: Log) -> None:
        """Makes every node's engine hold the image under its digest; an image that it holds is not pulled again."""
        from docker.errors import ImageNotFound

        for endpoint, plan in {plan.endpoint: plan for plan in self.plans}.items():
            images = self._clients[endpoint].images
            try:
                images.get(plan.image)
            except ImageNotFound:
                log.line(f"{endpoint}: pulling {plan.image}")
                images.pull(plan.image, platform=plan.platform)

    def create_containers(self, token: str) -> None:
        """Creates networks and containers, and copies our files and the secrets into them; nothing starts yet."""
        for endpoint, network in {(plan.endpoint, plan.network) for plan in self.plans}:
            if network is not None:
                labels = {LABEL: "node", f"{LABEL}.cluster": self.plans[0].cluster}
                self._clients[endpoint].networks.create(network, labels=labels)
        for plan in self.plans:
            container = self._clients[plan.endpoint].containers.create(
                plan.image, list(plan.command), **_container_options(plan)
            )
            secrets = {TOKEN_FILE: token.encode(), SECRETS_FILE: plan.secrets.content}
            container.put_archive("/", pack_files({**plan.files, **secrets}))

    def start_container(self, plan: NodePlan) -> None:
        """Starts one node's container."""
        self._container(plan).start()

    def start_engine(self, plan: NodePlan) -> None:
        """Sends the file for which the node's container waits before it starts vLLM."""
        self._container(plan).put_archive("/", pack_files({START_FILE: b""}))

    def state(self, plan: NodePlan) -> ContainerState | None:
        """Returns the state of the node's container; None if it does not exist."""
        from docker.errors import NotFound

        try:
            return container_state(self._container(plan).attrs)
        except NotFound:
            return None

    def labels(self, plan: NodePlan) -> dict[str, str]:
        """Returns the labels that tell the node's container from any other, as it has them."""
        state = self.state(plan)
        actual = state.labels if state else {}
        return plan.labels | {label: actual[label] for label in (SECRETS_LABEL,) if label in actual}

    def run(self, plan: NodePlan, argv: Sequence[str]) -> tuple[int, str]:
        """Runs a command in the node's container to its end; returns its exit status and output."""
        status, output = self._container(plan).exec_run(list(argv))
        assert status is not None
        assert isinstance(output, bytes)
        return status, output.decode(errors="replace")

    def run_in_new_container(self, plan: NodePlan, argv: Sequence[str]) -> tuple[int, str]:
        """Runs a command in a temporary container of the node's image; returns its exit status and output.

        A container that cannot start has the status 126, and the engine's message as its output.
        """
        from docker.errors import APIError

        options: dict[str, Any] = {"platform": plan.platform, "network_mode": "none", "mounts": _mounts(plan)}
        labels = {LABEL: "node", f"{LABEL}.cluster": plan.cluster}
        try:
            containers = self._clients[plan.endpoint].containers
            container = containers.create(plan.image, list(argv), entrypoint=[], labels=labels, **options)
        except APIError as error:
            return CANNOT_START, str(error.explanation or error)
        try:
            container.start()
            status = int(container.wait()["StatusCode"])
            return status, bytes(container.logs()).decode(errors="replace")
        except APIError as error:
            return CANNOT_START, str(error.explanation or error)
        finally:
            container.remove(force=True, v=True)

    def follow_output(self, plan: NodePlan, handle: LineHandler) -> threading.Thread:
        """Starts a thread that hands over every line that the node's container writes, until it ends."""
        container = self._container(plan)
        thread = threading.Thread(target=_pump_lines, args=(container, plan.node, handle), daemon=True)
        thread.start()
        return thread

    def lower_cpu_shares(self) -> None:
        """Leaves the processors to everything else on this machine, as far as containers stand in for machines.

        Real nodes have nothing else to do. On this machine a developer works, and the looks at engine and registry
        take longer beside an engine that works (or merely waits, in an image that has no compiler for
        emulation/patience.c).
        """
        for plan in self.plans:
            if plan.network is not None:
                self._container(plan).update(cpu_shares=LOWEST_CPU_SHARES)

    def remove(self) -> list[str]:
        """Removes every container and network of the cluster, running or not; returns their names."""
        return [name for client in self._clients.values() for name in remove_cluster(client, self.plans[0].cluster)]

    def fetch_tar(self, plan: NodePlan, path: str) -> bytes | None:
        """Returns a tar of a file or folder of the node's container; None if it does not exist there."""
        from docker.errors import APIError

        try:
            chunks, _ = self._container(plan).get_archive(path)
            return b"".join(chunks)
        except APIError:
            return None

    def holds_secrets(self, plan: NodePlan) -> bool:
        """Returns whether the node's container holds the plan's secrets; no label tells of their values."""
        if not plan.secrets.names:
            return True
        tar = self.fetch_tar(plan, f"{TANDEM_FOLDER}/{SECRETS_FILE}")
        return tar is not None and _only_file(tar) == plan.secrets.content

    def _container(self, plan: NodePlan) -> "Container":
        return self._clients[plan.endpoint].containers.get(plan.container)


def remove_cluster(client: "DockerClient", cluster: str) -> list[str]:
    """Removes a cluster's containers, then its networks, from one engine; returns their names."""
    from docker.errors import NotFound

    filters: dict[str, str | list[str] | bool] = {"label": [f"{LABEL}=node", f"{LABEL}.cluster={cluster}"]}
    removed: list[str] = []
    for container in client.containers.list(all=True, filters=filters, ignore_removed=True):
        with suppress(NotFound):
            engine.remove_container(container)
            removed.append(str(container.name))
    for network in client.networks.list(filters=filters):
        with suppress(NotFound):
            network.remove()
            removed.append(str(network.name))
    return removed


def container_state(attrs: Mapping[str, Any]) -> ContainerState:
    """Returns the state that the engine's description of a container gives (GET /containers/ID/json)."""
    state, labels = attrs["State"], attrs["Config"]["Labels"] or {}
    ports = [binding for bindings in (attrs["NetworkSettings"]["Ports"] or {}).values() for binding in bindings or []]
    return ContainerState(
        container=str(attrs["Name"]).removeprefix("/"),
        node=labels.get(f"{LABEL}.node", ""),
        status=str(state["Status"]),
        exit_code=int(state.get("ExitCode", 0)),
        oom_killed=bool(state.get("OOMKilled")),
        started=str(state.get("StartedAt", "")),
        labels=labels,
        published=int(ports[0]["HostPort"]) if ports else None,
    )


def difference(plan: NodePlan, state: ContainerState | None) -> str | None:
    """Returns why a container is not the one that the plan wants; None if it is."""
    if state is None:
        return f"{plan.container} does not exist"
    if state.status != "running":
        return f"{plan.container} is {state.status}"
    for label, wanted in plan.labels.items():
        if state.labels.get(label) != wanted:
            return f"{plan.container} has {label}={state.labels.get(label)}"
    return None


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Returns a tar of files, given by path below TANDEM_FOLDER; only root can read the secrets."""
    folder = TANDEM_FOLDER.removeprefix("/")
    secret = f"{SECRETS_FOLDER}/"
    return archives.archive_bytes(
        {f"{folder}/{path}": (content, 0o600 if path.startswith(secret) else 0o644) for path, content in files.items()}
    )


def unpack_tar(tar: bytes, into: Path) -> None:
    """Writes the plain files of a tar into one folder, each under the last part of its path, without secrets."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                into.mkdir(parents=True, exist_ok=True)
                (into / Path(member.name).name).write_bytes(redact.clean_bytes(content.read()))


def read_output(client: "DockerClient", container: str, *, follow: bool) -> Iterable[bytes]:
    """Returns what a container has written, in chunks; with `follow`, they go on until it ends."""
    existing = client.containers.get(container)
    return existing.logs(stream=True, follow=True) if follow else [existing.logs()]


def _only_file(tar: bytes) -> bytes | None:
    """Returns the content of the plain file that a tar consists of; None if it is anything else."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = archive.getmembers()
        content = archive.extractfile(members[0]) if len(members) == 1 and members[0].isfile() else None
        return content.read() if content else None


def _container_options(plan: NodePlan) -> dict[str, Any]:
    options: dict[str, Any] = {
        "name": plan.container,
        "hostname": plan.container if plan.network else None,
        "labels": {**plan.labels, **({SECRETS_LABEL: os.urandom(8).hex()} if plan.secrets.names else {})},
        "environment": dict(plan.env),
        "platform": plan.platform,
        "entrypoint": [],
        "shm_size": SHM_BYTES,
        "network": plan.network or "host",
        "mounts": _mounts(plan),
    }
    if plan.published is not None:
        port = plan.serve[plan.serve.index("--port") + 1] if plan.serve else plan.published
        host_port = None if plan.published == ANY_PORT else int(plan.published)
        options["ports"] = {f"{port}/tcp": ("127.0.0.1", host_port)}
    return options


def _mounts(plan: NodePlan) -> "list[Mount]":
    """Returns the plan's mounts. Unlike volumes, they do not make the engine create a path that does not exist."""
    from docker.types import Mount

    return [Mount(target=target, source=path, type="bind", read_only=True) for path, target in plan.mounts.items()]


def _pump_lines(container: "Container", node: str, handle: LineHandler) -> None:
    rest = b""
    try:
        for chunk in container.logs(stream=True, follow=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                handle(node, line.decode(errors="replace").rstrip("\r"))
    except Exception as error:  # the container was removed while it was followed; its output ends here
        handle(node, f"(its log ended: {type(error).__name__})")
    if rest:
        handle(node, rest.decode(errors="replace"))
