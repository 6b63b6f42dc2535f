"""A hook of `ray start` (its RAY_START_HOOK): no server for remote clients, no dashboard; an engine asks for neither.

Each is a process that imports Ray again and an open port; Ray has no option to leave them out.
"""

from typing import Any

from ray._private.node import Node


def quiet(params: Any, head: bool) -> None:
    """Called by `ray start` with its RayParams before the node starts."""
    params.ray_client_server_port = None
    if head:
        Node.start_api_server = _no_api_server


def _no_api_server(_node: Node, **_kwargs: Any) -> None:
    return
