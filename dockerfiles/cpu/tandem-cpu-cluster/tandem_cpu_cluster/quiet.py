"""A hook of `ray start` (its RAY_START_HOOK): the least that an engine asks of Ray, and no race at its start.

No server for remote clients and no dashboard: each is a process that imports Ray again and an open port, and Ray has no
option to leave them out. And the raylet is told the port of its own agent's HTTP service: else it waits 15 s, a number
in its code, for the agent to write it down, and dies; an agent under an emulator takes longer.
"""

from typing import Any

from ray._private import ray_constants, services
from ray._private.node import Node


def quiet(params: Any, head: bool) -> None:
    """Called by `ray start` with its RayParams before the node starts."""
    params.ray_client_server_port = None
    if head:
        Node.start_api_server = _no_api_server
    start = services.start_ray_process

    def start_told(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            command = [*command, f"--dashboard_agent_listen_port={params.dashboard_agent_listen_port}"]
        return start(command, process_type, *args, **kwargs)

    services.start_ray_process = start_told


def _no_api_server(_node: Node, **_kwargs: Any) -> None:
    return
