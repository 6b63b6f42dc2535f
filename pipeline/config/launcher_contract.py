"""The launcher contract as data: what launch-cluster.sh asks of an image, in every era (docs/launcher-contract.md).

This module is the one place of these facts. Probes run inside images and cannot import it: a test compares their
copies with the values here.
"""

import re
from collections.abc import Iterable

PointFailure = tuple[int, str]
"""The number of the point that is not satisfied, and why."""

NODE_SCRIPT = "run-cluster-node.sh"
"""The script that era A runs in WORKDIR (2.1)."""
CONTAINER_NAME = "vllm_node"
"""The name that every era gives its container."""
WORKSPACE = "/workspace"
"""The folder that mods and launch scripts are copied into."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH that Docker sets for an image without one."""
MODS_PACKAGES = "/usr/local/lib/python3.12/dist-packages"
"""The folder in which mods patch vLLM; they have it written into them (2.6, point 8)."""

RAY_PORT_ERA_A = 6379
MASTER_PORT = 29501
"""The port of eras B to D: Ray's, or vLLM's own rendezvous (2.2)."""
DASHBOARD_PORT = 8265
API_PORT = 8000
PORTS = (MASTER_PORT, RAY_PORT_ERA_A, DASHBOARD_PORT, API_PORT)
"""The ports that must be free on both machines (2.6, point 14)."""
RAY_OBJECT_STORE_BYTES = 1073741824
RAY_CPUS = 2

ADDRESS_VARIABLES = ("VLLM_HOST_IP", "RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS")
"""The variables that launchers set to a node's own address."""
INTERFACE_VARIABLES = (
    "MN_IF_NAME", "UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include", "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
)  # fmt: skip
"""The variables that launchers set to a node's Ethernet interface."""
RDMA_VARIABLE = "NCCL_IB_HCA"
"""The variable that launchers set to a node's RDMA devices."""
RAY_NODE_VARIABLE = re.compile(r"RAY_\w*(ADDRESS|NODE_I[DP])\w*")
"""A variable of Ray that names a node or its address. Ray's other variables are the same on every node."""

SHELL_TOOLS = ("sleep", "mkdir", "touch", "chmod", "cat", "rm", "grep", "sed")
"""The programs besides bash that every launch calls (2.6, point 3)."""
RDMA_LIBRARIES = {"libibverbs.so.1": "libibverbs1", "librdmacm.so.1": "librdmacm1"}
"""The libraries that NCCL loads for RDMA, and the Debian package of each (2.6, point 9)."""
ROOT_USERS = ("", "root", "0", "0:0", "root:root")
"""The values of USER that mean root (2.6, point 3)."""
CACHE_FOLDERS = (".cache/huggingface", ".cache/vllm", ".cache/flashinfer", ".triton", ".tilelang")
"""The folders below /root that launchers mount the host's own over (2.6, point 11)."""

POINTS = {
    1: "for the platform of image.yaml, and on both machines under one Id",
    2: "ENTRYPOINT is none, or hands over to the command it is given",
    3: "root, HOME=/root and writable, bash and the core tools",
    4: "WORKDIR is writable, and run-cluster-node.sh in it does what launchers expect",
    5: "/workspace is there and writable",
    6: "ray, vllm, python3 and git are on PATH without a login shell",
    7: "ray[default], one Ray",
    8: "vllm is where mods patch it; git, curl, patch, and uv or pip",
    9: "the libraries of RDMA; earlyoom",
    10: "nothing that differs from node to node is in ENV",
    11: "nothing lies where launchers mount folders",
    12: "`vllm serve` takes the options of its own multi-node executor",
    13: "`ray start` takes the options of every era",
    14: f"ports {', '.join(map(str, PORTS))} are free on both machines",
}
"""The fourteen points that an image must satisfy under launchers of every era (2.6)."""


def is_node_specific(variable: str) -> bool:
    """Returns whether a variable differs from node to node, so that no image may have it in ENV."""
    variables = (*ADDRESS_VARIABLES, *INTERFACE_VARIABLES, RDMA_VARIABLE)
    return variable in variables or RAY_NODE_VARIABLE.fullmatch(variable) is not None


def by_point(failures: Iterable[PointFailure]) -> dict[str, list[str]]:
    """Returns every point, by its number as text, with the reasons why it is not satisfied."""
    reasons: dict[str, list[str]] = {str(number): [] for number in POINTS}
    for number, reason in failures:
        reasons[str(number)].append(reason)
    return reasons
