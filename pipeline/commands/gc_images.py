"""Finds images in an engine that this checkout made and that none of its records needs any more."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from pipeline.core.errors import TandemError
from pipeline.graph.garbage import IMAGES, NODES, Item, KeptReferences
from pipeline.host import engine

PREFIX = "tandem/"


def find_old_images(kept: KeptReferences) -> Iterator[Item]:
    """Yields old images of the local engine. Raises HostError if no engine answers."""
    with engine.session("local") as client:
        return old_images_among(kept, "local", engine.list_images(client), client.api.containers(all=True))


def old_images_among(
    kept: KeptReferences, endpoint: str, images: Iterable[Any], containers: Iterable[Any], prefix: str = PREFIX
) -> Iterator[Item]:
    """Yields images with a name of ours that only records to be removed mention, and that no container uses.

    Images that no record of this checkout mentions are another's. A stopped container uses its image. Sizes are the
    engine's: shared layers count for each image. `prefix` begins our names below a registry.
    """
    used = {container["ImageID"] for container in containers}
    for image in images:
        names = [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]
        ours = [name for name in names if name.startswith(PREFIX) or f"/{PREFIX}" in name or f"/{prefix}" in name]
        # An engine that names images by their configuration knows the manifest's digest only from the pull.
        if ours and image["Id"] not in used and kept.lets_go(" ".join([image["Id"], *ours])):
            shown_name = ", ".join(name for name in ours if "@" not in name) or ours[0]
            # With all its names, or the engine keeps what was pulled by digest.
            remove = partial(_remove, endpoint, image["Id"], None if ours == names else ours)
            kind, name = (IMAGES, shown_name) if endpoint == "local" else (NODES, f"{endpoint}: {shown_name}")
            yield Item(kind=kind, name=name, bytes=image["Size"], remove=remove)


def _remove(endpoint: str, digest: str, names: list[str] | None) -> None:
    """Removes names of an image, or the image with all names (None). Raises HostError, TandemError if it is refused."""
    from docker.errors import APIError, ImageNotFound

    with engine.session(endpoint) as client:
        for name in [digest] if names is None else names:
            try:
                # Another run may have given the name to a newer image.
                if client.images.get(name).id == digest:
                    client.images.remove(name, force=names is None, noprune=True)
            except ImageNotFound:
                continue
            except APIError as error:
                explanation = error.explanation or error
                raise TandemError(f"the engine at {endpoint} does not remove {name}: {explanation}") from error
