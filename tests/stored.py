"""What the engine holds: other tests make and remove images and containers meanwhile."""

from contextlib import suppress

from docker import DockerClient
from docker.errors import NotFound
from docker.models.containers import Container

from pipeline.host import engine
from pipeline.registry import local


def names(client: DockerClient, part: str = "") -> dict[str, str]:
    """Every name (`repository:tag`, `repository@digest`) that has the part in it, with its image's digest."""
    return {
        name: image["Id"]
        for image in engine.list_images(client)
        for name in [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]
        if part in name
    }


def containers(client: DockerClient, label: str) -> list[Container]:
    """Those with a label (`key=value`), whatever their state."""
    found: list[Container] = client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
    return found


def remove(client: DockerClient, part: str) -> None:
    """Remove the images with such a name, under all their names."""
    for digest in set(names(client, part).values()):
        client.images.remove(digest, force=True)


def remove_registry(address: str, *, volume: bool = False) -> None:
    """Remove the local registry behind host:port, and with `volume` all that it holds."""
    name = local.container_name(address)
    with engine.session() as client:
        for container in client.containers.list(all=True, filters={"name": f"^{name}$"}, ignore_removed=True):
            engine.remove_container(container)
        if volume:
            with suppress(NotFound):
                client.volumes.get(name).remove(force=True)
