"""What can be known of a node before anything of the cluster runs on it, asked in a container of the very image."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.cluster.nodes import Nodes
from pipeline.cluster.plan import ASSIGNED, Plan
from pipeline.core.errors import HostError
from pipeline.host import engine

# A rank of the tiny model, Ray and the API server, each with its own copy of torch.
NEEDS_MIB = 2048
NEEDS_FILES = 4096
LEAST = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
LOOK = "uname -m; ulimit -Hn; grep MemAvailable /proc/meminfo"


class Refused(Exception):
    """The node cannot run its part; `cause` is the catalogue's name for why."""

    def __init__(self, said: str, cause: str) -> None:
        super().__init__(said)
        self.cause = cause


def preflight(nodes: Nodes, plan: Plan, side_by_side: int) -> str:
    """What was found of the node; `side_by_side` nodes share its machine's memory. Raises Refused, HostError."""
    if plan.endpoint == "local" and plan.published not in (None, ASSIGNED):
        if taken(int(plan.published)):
            raise Refused(f"port {plan.published} of this machine is taken", "port")
        refuse_roots(int(plan.published), int(LEAST.read_text()), engine.look("local", "/info"))
    status, said = nodes.once(plan, ["sh", "-c", LOOK])
    if status != 0:
        raise Refused(f"the image does not run there: {said.strip()}", "platform")
    return judge(said, side_by_side)


def judge(said: str, side_by_side: int) -> str:
    """The same, from what LOOK printed: the machine, the hard limit on open files, /proc/meminfo's MemAvailable."""
    machine, files, memory = said.split("\n")[:3]
    free = int(memory.split()[1]) // 1024
    if files != "unlimited" and int(files) < NEEDS_FILES:
        raise Refused(f"at most {files} files may be open, and {NEEDS_FILES} are needed", "nofile")
    if free < NEEDS_MIB * side_by_side:
        raise Refused(f"{free} MiB of memory are free, and {NEEDS_MIB * side_by_side} are needed", "memory")
    return f"{machine}, {free} MiB free, {files} open files"


def taken(port: int) -> bool:
    """Whether something has the port of this machine's loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            return _answers(port)  # a port of root's: it is the engine that publishes it, and that one may be root's
        except OSError:
            return True
    return False


def refuse_roots(port: int, least: int, info: Mapping[str, Any]) -> None:
    """Raise HostError if the engine, which says `info` of itself, is not root's and the port is.

    `least` is the first port that anybody may have (ip(7), ip_unprivileged_port_start).
    """
    if port < least and "name=rootless" in (info.get("SecurityOptions") or ()):
        raise HostError(
            f"serve.port: {port}: ports below {least} are root's, and the engine here is a rootless one",
            hint=f"choose one from {least} up, or as root: sysctl -w net.ipv4.ip_unprivileged_port_start={port}",
        )


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # as of one who has too much to do
        return True
    return True
