"""Images in the local engine that this checkout made, and that none of its records needs any more."""

from collections.abc import Iterator
from functools import partial

from pipeline import engine
from pipeline.errors import TandemError
from pipeline.graph.garbage import IMAGES, Item, Kept

PREFIX = "tandem/"


def old_images(kept: Kept) -> Iterator[Item]:
    """Images with a tag of ours that only records which are about to go mention, and that no container uses.

    What no record of this checkout mentions is another's. A stopped container uses its image too. Sizes are the
    engine's: what images share counts for each. Raises HostError if no engine answers.
    """
    used = {container["ImageID"] for container in engine.look("local", "/containers/json?all=1") or ()}
    for image in engine.look("local", "/images/json") or ():
        tags = [tag for tag in image["RepoTags"] or () if tag.startswith(PREFIX)]
        if tags and image["Id"] not in used and kept.lets_go(image["Id"]):
            name = ", ".join(tags)
            yield Item(kind=IMAGES, name=name, bytes=image["Size"], remove=partial(_remove, image["Id"], tags))


def _remove(digest: str, tags: list[str]) -> None:
    """Take our tags away, which removes an image that has no other. Raises TandemError if the engine refuses."""
    from docker.errors import APIError, ImageNotFound

    client = engine.client()
    for tag in tags:
        now = engine.image("local", tag)
        if now is None or now["Id"] != digest:
            # Another run gave the tag to a newer image.
            continue
        try:
            client.images.remove(tag, noprune=True)
        except ImageNotFound:
            continue
        except APIError as error:
            raise TandemError(f"the engine does not remove {tag}: {error.explanation or error}") from error
