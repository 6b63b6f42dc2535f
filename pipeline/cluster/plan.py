"""What a cluster's containers are, as values: names, command lines, environments, files, and a hash over all of it.

Nodes without an address are containers on a private network of one engine, and stand in for machines with
accelerators: the command lines are those of a GPU cluster, and the environment says that the devices are CPUs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config.launcher_contract import MASTER_PORT, RAY_PORT_ERA_A
from pipeline.config.models import Cluster, Node
from pipeline.host.engine import LABEL

INSIDE = "/opt/tandem"
"""Where our files lie in a node's container."""
TOKEN = "secrets/ray-token"
GO = "go"
"""The file whose arrival starts the engine."""
MODEL = "model"
OBJECT_STORE = 256 << 20
AGENT_PORTS = {
    "--dashboard-agent-grpc-port": 6381,
    "--dashboard-agent-listen-port": 6382,
    "--runtime-env-agent-port": 6383,
    "--metrics-export-port": 6384,
}
"""Said, because for ports that it must find out itself Ray's raylet waits 15 s, a number in its code, and then dies."""
PROBES = Path(__file__).parents[1] / "probes"
RUNNERS = ("serve_node.py", "serve_fabric.py")

COMMON = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": f"{INSIDE}/{TOKEN}",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own guard takes the weights for a leak where memory is unified.
    "RAY_memory_monitor_refresh_ms": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
STAND_IN = {
    "TANDEM_CPU_CLUSTER": "1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "OMP_NUM_THREADS": "1",
    # A machine that is several nodes at once is slow to answer, and not dead.
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_failure_threshold": "30",
    "RAY_START_HOOK": "tandem_cpu_cluster.quiet.quiet",
    # Some functions of vLLM are compiled with g++ whatever --enforce-eager says: minutes under an emulator.
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # A spawned engine imports everything again, which an emulator makes a minute.
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
}
ASSIGNED = "0"
"""As a published port: any free one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One node's container, and everything that decides it. `files` are contents by path below INSIDE."""

    cluster: str
    node: str
    endpoint: str
    container: str
    first_rank: int
    accelerators: int
    image: str
    platform: str
    network: str | None
    published: str | None
    ray: tuple[str, ...] | None
    serve: tuple[str, ...] | None
    env: Mapping[str, str]
    files: Mapping[str, bytes]
    mounts: Mapping[str, str]

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
        plan = json.dumps({"ray": self.ray, "serve": self.serve})
        return ("python3", f"{INSIDE}/serve_node.py", plan)

    @property
    def labels(self) -> dict[str, str]:
        """The container's labels, by which a look tells whether it is still the right one."""
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
        """A hash over everything that decides the container; secrets are no part of it."""
        decided: dict[str, Any] = {
            "image": self.image,
            "platform": self.platform,
            "network": self.network,
            "published": self.published,
            "command": self.command,
            "env": dict(sorted(self.env.items())),
            "files": {path: hashlib.sha256(content).hexdigest() for path, content in sorted(self.files.items())},
            "mounts": dict(sorted(self.mounts.items())),
        }
        return hashlib.sha256(json.dumps(decided).encode()).hexdigest()


def plans(
    name: str, cluster: Cluster, image: str, platform: str, *, model: Path | None, emulated: bool = False
) -> tuple[Plan, ...]:
    """One plan a node, the head first. `image` is repository@digest; `model` the folder that is sent into each node.

    Without `model`, the folder `serve.model` of each machine is mounted. `emulated` says that the nodes' machines run
    the platform through qemu.
    """
    files = _files(model, emulated=emulated)
    return tuple(
        _plan(name, cluster, nth, image, platform, files, emulated=emulated) for nth in range(len(cluster.nodes))
    )


def alone(cluster: Cluster) -> Cluster:
    """The cluster that serves the same on one rank: what its results are measured against."""
    from msgspec.structs import replace as changed

    node = Node(name="reference", endpoint=cluster.nodes[0].endpoint)
    return changed(cluster, nodes=(node,), accelerators=1, executor="none")


def anywhere(plan: Plan) -> Plan:
    """The same plan, its service published on any free port."""
    return replace(plan, published=ASSIGNED)


def _plan(
    name: str, cluster: Cluster, nth: int, image: str, platform: str, files: Mapping[str, bytes], *, emulated: bool
) -> Plan:
    node = cluster.nodes[nth]
    boxed = node.address is None
    env = {**COMMON, **(STAND_IN if boxed else {"VLLM_HOST_IP": str(node.address)}), **cluster.serve.env}
    if emulated:
        env["PYTHONPATH"] = ":".join(filter(None, (f"{INSIDE}/emulation", env.get("PYTHONPATH"))))
    sent = any(path.startswith(f"{MODEL}/") for path in files)
    return Plan(
        cluster=name,
        node=node.name,
        endpoint=node.endpoint,
        container=f"{LABEL}-{name}-{node.name}",
        first_rank=nth * cluster.accelerators,
        accelerators=cluster.accelerators,
        image=image,
        platform=platform,
        network=f"{LABEL}-{name}" if boxed else None,
        published=str(cluster.serve.port) if boxed and nth == 0 else None,
        ray=_ray(name, cluster, nth),
        serve=_serve(name, cluster, nth, f"{INSIDE}/{MODEL}" if sent else cluster.serve.model),
        env=env,
        files=files,
        mounts={} if sent else {cluster.serve.model: cluster.serve.model},
    )


def _ray(name: str, cluster: Cluster, nth: int) -> tuple[str, ...] | None:
    if cluster.executor != "ray":
        return None
    if nth == 0:
        where = ["--head", "--port", str(RAY_PORT_ERA_A), "--include-dashboard", "false", "--disable-usage-stats"]
    else:
        where = ["--address", f"{_head(name, cluster)}:{RAY_PORT_ERA_A}"]
    resources = ["--num-gpus", str(cluster.accelerators), "--num-cpus", "1", "--object-store-memory", str(OBJECT_STORE)]
    agents = [word for flag, port in AGENT_PORTS.items() for word in (flag, str(port))]
    return (
        "ray",
        "start",
        "--block",
        "--log-color",
        "false",
        *where,
        "--node-ip-address",
        "@address@",
        *agents,
        *resources,
    )


def _serve(name: str, cluster: Cluster, nth: int, model: str) -> tuple[str, ...] | None:
    if cluster.executor == "ray" and nth > 0:
        return None
    nodes, serve = len(cluster.nodes), cluster.serve
    argv = ["vllm", "serve", model, "--served-model-name", serve.name]
    if nth == 0:
        argv += ["--host", "0.0.0.0" if cluster.nodes[0].address is None else "127.0.0.1", "--port", str(serve.port)]
    argv += ["--tensor-parallel-size", str(nodes * cluster.accelerators)]
    if cluster.executor == "ray":
        argv += ["--distributed-executor-backend", "ray"]
    elif nodes > 1:
        argv += ["--nnodes", str(nodes), "--node-rank", str(nth), "--master-addr", _head(name, cluster)]
        argv += ["--master-port", str(MASTER_PORT)] + (["--headless"] if nth > 0 else [])
    return (*argv, *serve.args)


def _head(name: str, cluster: Cluster) -> str:
    head = cluster.nodes[0]
    return head.address or f"{LABEL}-{name}-{head.name}"


def _files(model: Path | None, *, emulated: bool) -> dict[str, bytes]:
    wanted = {name: PROBES / name for name in RUNNERS}
    if emulated:
        shims = (file for file in sorted((PROBES / "emulation").iterdir()) if file.is_file())
        wanted |= {f"emulation/{file.name}": file for file in shims}
    if model is not None:
        wanted |= {f"{MODEL}/{file.name}": file for file in sorted(model.iterdir()) if file.is_file()}
    return {path: file.read_bytes() for path, file in wanted.items()}
