"""What can be known of a node before anything of the cluster runs on it, asked in a container of the very image."""

import socket

from pipeline.cluster import Nodes
from pipeline.layout import ASSIGNED, Plan

# A rank of the tiny model, Ray and the API server, each with its own copy of torch.
NEEDS_MIB = 2048
NEEDS_FILES = 4096
LOOK = "uname -m; ulimit -Hn; grep MemAvailable /proc/meminfo"


def preflight(nodes: Nodes, plan: Plan, side_by_side: int) -> tuple[bool, str]:
    """Whether the node is refused, and why or what was found. `side_by_side` nodes share the machine's memory."""
    if plan.endpoint == "local" and plan.published not in (None, ASSIGNED) and taken(int(plan.published)):
        return True, f"port {plan.published} of this machine: address already in use"
    status, said = nodes.once(plan, ["sh", "-c", LOOK])
    if status != 0:
        return True, f"the image does not run there: {said.strip()}"
    return judge(said, side_by_side)


def judge(said: str, side_by_side: int) -> tuple[bool, str]:
    """The same, from what LOOK printed: the machine, the hard limit on open files, /proc/meminfo's MemAvailable."""
    machine, files, memory = said.split("\n")[:3]
    free = int(memory.split()[1]) // 1024
    if files != "unlimited" and int(files) < NEEDS_FILES:
        return True, f"Too many open files to come: the limit is {files}, and {NEEDS_FILES} are needed"
    if free < NEEDS_MIB * side_by_side:
        return True, f"Out of memory to come: {free} MiB are free, and {NEEDS_MIB * side_by_side} are needed"
    return False, f"{machine}, {free} MiB free, {files} open files"


def taken(port: int) -> bool:
    """Whether something listens on the port of this machine's loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
