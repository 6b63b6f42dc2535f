"""Plans a cluster's containers: names, command lines, environments, files, and a hash of everything that decides them.

Nodes without an address are containers on a private network of one engine. They stand in for machines with
accelerators: the command lines are those of a GPU cluster, and the environment says that the devices are CPUs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import replace as replace_fields

from pipeline.cluster.service_secrets import ServiceSecrets, part_secrets
from pipeline.config.launcher_contract import MASTER_PORT, RAY_PORT_ERA_A
from pipeline.config.models import Cluster, Node
from pipeline.host.engine import LABEL

TANDEM_FOLDER = "/opt/tandem"
"""The folder of a node's container that holds our files."""
SECRETS_FOLDER = "secrets"
"""Only root can read its files."""
TOKEN_FILE = f"{SECRETS_FOLDER}/ray-token"
SECRETS_FILE = f"{SECRETS_FOLDER}/serve.json"
START_FILE = "go"
"""The file that makes a waiting container start its engine when it arrives."""
MODEL_FOLDER = "model"
OBJECT_STORE_BYTES = 256 << 20
AGENT_PORTS = {
    "--dashboard-agent-grpc-port": 6381,
    "--dashboard-agent-listen-port": 6382,
    "--runtime-env-agent-port": 6383,
    "--metrics-export-port": 6384,
}
"""Fixed, because Ray's raylet waits only 15 s (a number in its code) for ports that it must find out itself."""
PROBES = Path(__file__).parents[1] / "probes"
NODE_PROGRAMS = ("serve_node.py", "serve_fabric.py")

COMMON_ENV = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": f"{TANDEM_FOLDER}/{TOKEN_FILE}",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own guard mistakes the weights for a leak where memory is unified.
    "RAY_memory_monitor_refresh_ms": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
STAND_IN_ENV = {
    "TANDEM_CPU_CLUSTER": "1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "OMP_NUM_THREADS": "1",
    # A machine that plays several nodes answers slowly, but is not dead.
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_failure_threshold": "30",
    "RAY_START_HOOK": "tandem_cpu_cluster.quiet.quiet",
    # vLLM compiles some functions with g++ in spite of --enforce-eager, which takes minutes under an emulator.
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # A spawned engine imports everything again, which takes a minute under an emulator.
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
}
ANY_PORT = "0"
"""As a published port: any free one."""


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """One node's container, and everything that decides it."""

    cluster: str
    node: str
    endpoint: str
    """The node's Docker engine: "local", or a Docker host."""
    container: str
    first_rank: int
    accelerators: int
    """The number of ranks on this node."""
    image: str
    """repository@sha256:…"""
    platform: str
    """os/architecture"""
    network: str | None
    """The private network of stand-ins; None for the host's own network."""
    published: str | None
    """The port of this machine's loopback that serves the API; None if the node publishes none."""
    ray: tuple[str, ...] | None
    """The command line that starts Ray; None without Ray."""
    serve: tuple[str, ...] | None
    """The command line that starts vLLM; None if the node only joins Ray."""
    model: str
    """The model's folder in the container."""
    env: Mapping[str, str]
    secrets: ServiceSecrets
    files: Mapping[str, bytes]
    """Contents by path below TANDEM_FOLDER."""
    mounts: Mapping[str, str]
    """Paths in the container by path on the node; read-only."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The tensor-parallel ranks that live on this node."""
        return tuple(range(self.first_rank, self.first_rank + self.accelerators))

    @property
    def digest(self) -> str:
        """The image's digest, as in sha256:…"""
        return self.image.rpartition("@")[2]

    @property
    def command(self) -> tuple[str, ...]:
        """The container's command line."""
        argument = json.dumps({"ray": self.ray, "serve": self.serve})
        return ("python3", f"{TANDEM_FOLDER}/serve_node.py", argument)

    @property
    def labels(self) -> dict[str, str]:
        """The container's labels. They tell whether a running container is still the right one."""
        return {
            LABEL: "node",
            f"{LABEL}.cluster": self.cluster,
            f"{LABEL}.node": self.node,
            f"{LABEL}.role": "worker" if self.first_rank else "head",
            f"{LABEL}.rank": str(self.first_rank),
            f"{LABEL}.digest": self.digest,
            f"{LABEL}.args": self.args,
        }

    @property
    def args(self) -> str:
        """A hash of everything that decides the container, but for the values of its secrets.

        A hash of these could be guessed by whoever sees it, or would differ from user to user: holds_secrets() of
        cluster.nodes compares them.
        """
        decided: dict[str, Any] = {
            "image": self.image,
            "platform": self.platform,
            "network": self.network,
            "published": self.published,
            "command": self.command,
            "env": dict(sorted(self.env.items())),
            "secrets": self.secrets.names,
            "files": {path: hashlib.sha256(content).hexdigest() for path, content in sorted(self.files.items())},
            "mounts": dict(sorted(self.mounts.items())),
        }
        return hashlib.sha256(json.dumps(decided).encode()).hexdigest()


def plan_nodes(
    name: str, cluster: Cluster, image: str, platform: str, *, model: Path | None, emulated: bool = False
) -> tuple[NodePlan, ...]:
    """Returns one plan per node, the head first.

    `image` is repository@digest. The folder `model` is copied into each node; without it, each machine's own folder
    `serve.model` is mounted. `emulated` says that the machines run the platform through qemu.
    """
    files = _node_files(model, emulated=emulated)
    return tuple(
        _plan_node(name, cluster, index, image, platform, files, emulated=emulated)
        for index in range(len(cluster.nodes))
    )


def single_rank(cluster: Cluster) -> Cluster:
    """Returns the cluster that serves the same model on one rank; its answer is the reference."""
    node = Node(name="reference", endpoint=cluster.nodes[0].endpoint)
    return replace_fields(cluster, nodes=(node,), accelerators=1, executor="none")


def on_any_port(plan: NodePlan) -> NodePlan:
    """Returns the same plan with its service published on any free port."""
    return replace(plan, published=ANY_PORT)


def _plan_node(
    name: str, cluster: Cluster, index: int, image: str, platform: str, files: Mapping[str, bytes], *, emulated: bool
) -> NodePlan:
    node = cluster.nodes[index]
    stand_in = node.address is None
    serve, secrets = part_secrets(cluster.serve)
    cluster = replace_fields(cluster, serve=serve)
    env = {**COMMON_ENV, **(STAND_IN_ENV if stand_in else {"VLLM_HOST_IP": str(node.address)}), **cluster.serve.env}
    if emulated:
        env["PYTHONPATH"] = ":".join(filter(None, (f"{TANDEM_FOLDER}/emulation", env.get("PYTHONPATH"))))
    copied = any(path.startswith(f"{MODEL_FOLDER}/") for path in files)
    model = f"{TANDEM_FOLDER}/{MODEL_FOLDER}" if copied else cluster.serve.model
    return NodePlan(
        cluster=name,
        node=node.name,
        endpoint=node.endpoint,
        container=f"{LABEL}-{name}-{node.name}",
        first_rank=index * cluster.accelerators,
        accelerators=cluster.accelerators,
        image=image,
        platform=platform,
        network=f"{LABEL}-{name}" if stand_in else None,
        published=str(cluster.serve.port) if stand_in and index == 0 else None,
        ray=_ray_command(name, cluster, index),
        serve=_serve_command(name, cluster, index, model),
        model=model,
        env=env,
        secrets=secrets,
        files=files,
        mounts={} if copied else _model_mounts(model),
    )


def _ray_command(name: str, cluster: Cluster, index: int) -> tuple[str, ...] | None:
    if cluster.executor != "ray":
        return None
    if index == 0:
        role = ["--head", "--port", str(RAY_PORT_ERA_A), "--include-dashboard", "false", "--disable-usage-stats"]
    else:
        role = ["--address", f"{_head_address(name, cluster)}:{RAY_PORT_ERA_A}"]
    resources = ["--num-gpus", str(cluster.accelerators), "--num-cpus", "1"]
    resources += ["--object-store-memory", str(OBJECT_STORE_BYTES)]
    agents = [word for flag, port in AGENT_PORTS.items() for word in (flag, str(port))]
    start = ("ray", "start", "--block", "--log-color", "false")
    return (*start, *role, "--node-ip-address", "@address@", *agents, *resources)


def _serve_command(name: str, cluster: Cluster, index: int, model: str) -> tuple[str, ...] | None:
    if cluster.executor == "ray" and index > 0:
        return None
    nodes, serve = len(cluster.nodes), cluster.serve
    argv = ["vllm", "serve", model, "--served-model-name", serve.name]
    if index == 0:
        argv += ["--host", "0.0.0.0" if cluster.nodes[0].address is None else "127.0.0.1", "--port", str(serve.port)]
    argv += ["--tensor-parallel-size", str(nodes * cluster.accelerators)]
    if cluster.executor == "ray":
        argv += ["--distributed-executor-backend", "ray"]
    elif nodes > 1:
        argv += ["--nnodes", str(nodes), "--node-rank", str(index), "--master-addr", _head_address(name, cluster)]
        argv += ["--master-port", str(MASTER_PORT)] + (["--headless"] if index > 0 else [])
    return (*argv, *serve.args)


def _model_mounts(model: str) -> dict[str, str]:
    """Returns the mounts that hold the model.

    A snapshot of the Hugging Face cache (models--ORGANISATION--NAME/snapshots/REVISION) is a folder of links into
    ../../blobs: its repository is mounted as a whole.
    """
    folder = PurePosixPath(model)
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--"):
        folder = folder.parents[1]
    return {str(folder): str(folder)}


def _head_address(name: str, cluster: Cluster) -> str:
    head = cluster.nodes[0]
    return head.address or f"{LABEL}-{name}-{head.name}"


def _node_files(model: Path | None, *, emulated: bool) -> dict[str, bytes]:
    sources = {name: PROBES / name for name in NODE_PROGRAMS}
    if emulated:
        shims = (file for file in sorted((PROBES / "emulation").iterdir()) if file.is_file())
        sources |= {f"emulation/{file.name}": file for file in shims}
    if model is not None:
        sources |= {f"{MODEL_FOLDER}/{file.name}": file for file in sorted(model.iterdir()) if file.is_file()}
    return {path: file.read_bytes() for path, file in sources.items()}
