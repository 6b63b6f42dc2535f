"""Images in the local engine that this checkout made, and that none of its records needs any more."""

from collections.abc import Iterator
from functools import partial

from pipeline import engine
from pipeline.errors import TandemError
from pipeline.graph.garbage import IMAGES, Item, Kept

PREFIX = "tandem/"


def old_images(kept: Kept) -> Iterator[Item]:
    """Images with a name of ours that only records which are about to go mention, and that no container uses.

    What no record of this checkout mentions is another's. A stopped container uses its image too. Sizes are the
    engine's: what images share counts for each. Raises HostError if no engine answers.
    """
    used = {container["ImageID"] for container in engine.look("local", "/containers/json?all=1") or ()}
    for image in engine.look("local", "/images/json") or ():
        names = [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]
        ours = [name for name in names if _ours(name)]
        if ours and image["Id"] not in used and kept.lets_go(image["Id"]):
            said = ", ".join(name for name in ours if "@" not in name) or ours[0]
            # With all its names, or the engine keeps what was pulled by digest.
            remove = partial(_remove, image["Id"], None if ours == names else ours)
            yield Item(kind=IMAGES, name=said, bytes=image["Size"], remove=remove)


def _ours(name: str) -> bool:
    """`tandem/cpu:1`, or the same below a registry."""
    return name.startswith(PREFIX) or f"/{PREFIX}" in name


def _remove(digest: str, names: list[str] | None) -> None:
    """Take names away from an image, or all with the image itself. Raises TandemError if the engine refuses."""
    from docker.errors import APIError, ImageNotFound

    client = engine.client()
    for name in [digest] if names is None else names:
        now = engine.image("local", name)
        if now is None or now["Id"] != digest:
            # Another run gave the name to a newer image.
            continue
        try:
            client.images.remove(name, force=names is None, noprune=True)
        except ImageNotFound:
            continue
        except APIError as error:
            raise TandemError(f"the engine does not remove {name}: {error.explanation or error}") from error
