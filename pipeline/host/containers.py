"""Removes containers and networks that killed runs left behind. Their labels name the process that made them."""

from contextlib import suppress
from typing import TYPE_CHECKING

from pipeline.core import owners
from pipeline.host import engine
from pipeline.host.engine import LABEL

if TYPE_CHECKING:
    from docker import DockerClient


OWNER_LABEL = f"{LABEL}.owner"


def remove_abandoned(client: "DockerClient", kind: str) -> list[str]:
    """Removes the containers and networks of a kind whose process has ended; returns their names."""
    from docker.errors import NotFound

    label: dict[str, str | list[str] | bool] = {"label": f"{LABEL}={kind}"}
    containers = client.containers.list(all=True, filters=label, ignore_removed=True)
    removed: list[str] = []
    for container in containers:
        if owners.is_gone(container.labels.get(OWNER_LABEL, "")):
            with suppress(NotFound):  # another run may remove it, too
                engine.remove_container(container)
                removed.append(str(container.name))
    for network in client.networks.list(filters=label):
        if owners.is_gone(network.attrs["Labels"].get(OWNER_LABEL, "")):
            with suppress(NotFound):
                network.remove()
                removed.append(str(network.name))
    return removed
