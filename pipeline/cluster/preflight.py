"""Checks of a node before anything of the cluster runs on it, made in a container of the very image."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.cluster.nodes import Nodes
from pipeline.cluster.plan import ANY_PORT, NodePlan
from pipeline.core.errors import HostError
from pipeline.host import engine

# A rank of the tiny model, Ray and the API server, each with its own copy of torch.
NEEDED_MIB = 2048
NEEDED_OPEN_FILES = 4096
FIRST_UNPRIVILEGED_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
"""The first port that programs of any user may bind (ip(7))."""
LOOK = "uname -m; ulimit -Hn; grep MemAvailable /proc/meminfo"
CONNECT_TIMEOUT_S = 5.0


class UnfitNodeError(Exception):
    """The node cannot run its part; `cause` is the name of the reason in the catalogue of causes."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


def check_node(nodes: Nodes, plan: NodePlan, nodes_on_machine: int) -> str:
    """Returns a description of the node's machine, whose memory `nodes_on_machine` nodes share.

    Raises UnfitNodeError, HostError.
    """
    if plan.endpoint == "local" and plan.published not in (None, ANY_PORT):
        if is_port_taken(int(plan.published)):
            raise UnfitNodeError(f"port {plan.published} of this machine is taken", "port")
        refuse_privileged_port(
            int(plan.published), int(FIRST_UNPRIVILEGED_PORT.read_text()), engine.get("local", "/info")
        )
    status, output = nodes.run_in_new_container(plan, ["sh", "-c", LOOK])
    if status != 0:
        raise UnfitNodeError(f"the image does not run there: {output.strip()}", "platform")
    return judge_machine(output, nodes_on_machine)


def judge_machine(output: str, nodes_on_machine: int) -> str:
    """Judges what LOOK printed: the machine, the hard limit on open files, /proc/meminfo's MemAvailable.

    Returns them as a description. Raises UnfitNodeError.
    """
    machine, files, memory = output.split("\n")[:3]
    free_mib = int(memory.split()[1]) // 1024
    if files != "unlimited" and int(files) < NEEDED_OPEN_FILES:
        raise UnfitNodeError(f"at most {files} files may be open, and {NEEDED_OPEN_FILES} are needed", "nofile")
    if free_mib < NEEDED_MIB * nodes_on_machine:
        raise UnfitNodeError(
            f"{free_mib} MiB of memory are free, and {NEEDED_MIB * nodes_on_machine} are needed", "memory"
        )
    return f"{machine}, {free_mib} MiB free, {files} open files"


def is_port_taken(port: int) -> bool:
    """Returns whether a program has the port of this machine's loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            return _answers(port)  # only root may bind it, which the engine that publishes it may well be
        except OSError:
            return True
    return False


def refuse_privileged_port(port: int, first_unprivileged: int, info: Mapping[str, Any]) -> None:
    """Raises HostError if the port is privileged and the engine is rootless.

    `info` is what the engine says of itself (GET /info).
    """
    if port < first_unprivileged and "name=rootless" in (info.get("SecurityOptions") or ()):
        raise HostError(
            f"serve.port: {port}: only root may use ports below {first_unprivileged}, and this engine is rootless",
            hint=f"choose a port from {first_unprivileged} up, or as root: "
            f"sysctl -w net.ipv4.ip_unprivileged_port_start={port}",
        )


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # a busy program may not accept in time
        return True
    return True
