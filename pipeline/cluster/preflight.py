"""Checks of a node before anything of the cluster runs on it, made in a container of the very image."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert

from pipeline.cluster.nodes import CANNOT_START, NO_SUCH_SOURCE, Nodes
from pipeline.cluster.plan import ANY_PORT, PROBES, NodePlan
from pipeline.cluster.probe_output import find_answer
from pipeline.core.errors import HostError
from pipeline.host import engine

# A rank of the tiny model, Ray and the API server, each with its own copy of torch.
NEEDED_MIB = 2048
NEEDED_OPEN_FILES = 4096
FIRST_UNPRIVILEGED_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
"""The first port that programs of any user may bind (ip(7))."""
PROBE = PROBES / "serve_preflight.py"
SHOWN_LINKS = 3
CONNECT_TIMEOUT_S = 5.0


class Machine(Struct, frozen=True):
    """What the probe tells of a node's machine; see serve_preflight.py."""

    machine: str
    open_files: int | None
    available_kib: int
    model_found: bool
    broken_links: list[str]


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
    model = plan.model if plan.mounts else ""
    argv = ["python3", "-c", PROBE.read_text()]
    status, output = nodes.run_in_new_container(plan, [*argv, model] if model else argv)
    if status == CANNOT_START and NO_SUCH_SOURCE in output:
        raise _missing_model(model)
    if status != 0:
        raise UnfitNodeError(f"the image does not run on this node: {output.strip()}", "platform")
    return judge_machine(output, nodes_on_machine, model)


def judge_machine(output: str, nodes_on_machine: int, model: str) -> str:
    """Judges what the probe printed; `model` is the folder that it was given.

    Returns a description of the machine. Raises UnfitNodeError.
    """
    answer = find_answer(output)
    try:
        machine = convert(answer, Machine)
    except ValidationError as error:
        raise UnfitNodeError(f"the preflight probe gave no usable answer: {output.strip()}", "platform") from error
    free_mib, needed_mib = machine.available_kib // 1024, NEEDED_MIB * nodes_on_machine
    if not machine.model_found:
        raise _missing_model(model)
    if machine.broken_links:
        links = ", ".join(machine.broken_links[:SHOWN_LINKS])
        raise UnfitNodeError(
            f"serve.model: {model}: {links} is a link to a file that the container does not have; "
            "copy the model without links (cp -rL)",
            "model-missing",
        )
    if machine.open_files is not None and machine.open_files < NEEDED_OPEN_FILES:
        message = f"at most {machine.open_files} files may be open, and {NEEDED_OPEN_FILES} are needed"
        raise UnfitNodeError(message, "nofile")
    if free_mib < needed_mib:
        raise UnfitNodeError(f"{free_mib} MiB of memory are free, and {needed_mib} are needed", "memory")
    open_files = "unlimited" if machine.open_files is None else machine.open_files
    return f"{machine.machine}, {free_mib} MiB free, {open_files} open files"


def _missing_model(model: str) -> UnfitNodeError:
    return UnfitNodeError(f"serve.model: {model} does not exist on this node", "model-missing")


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
