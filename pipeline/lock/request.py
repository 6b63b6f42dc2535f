"""The request that image.yaml makes of a lock, and the names of a lock's files.

The request is spelled out by hand: a new key of image.yaml must not invalidate old locks.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.config.models import CombinedImage, DebianImage, Image

_SHARED = {"head": "lock.json", "wheels": "requirements.txt", "interpreter": "interpreter.txt"}
FILES = {**_SHARED, "debs": "debs.txt"}
"""The files of a lock of an image made from Debian packages: what they hold → the end of their name."""
FILES_ON_IMAGE = {**_SHARED, "reading": "reading.json"}
"""The files of a lock of an image on top of another image."""


def request_of(image: Image) -> dict[str, Any]:
    """Returns the request as plain JSON; a lock with an equal one answers the image."""
    match image:
        case DebianImage():
            return _debian(image)
        case CombinedImage():
            return _combined(image)


def _debian(image: DebianImage) -> dict[str, Any]:
    return {
        "platform": image.platform,
        "debian": image.base.debian,
        "packages": sorted(set(image.base.packages)),
        "python": image.python.version,
        "requirements": sorted(set(image.python.requirements)),
        "constraints": sorted(set(image.python.constraints)),
        "cutoff": image.python.cutoff,
    }


def _combined(image: CombinedImage) -> dict[str, Any]:
    return {
        "platform": image.platform,
        "image": image.base.image if image.base else "",
        "requirements": sorted(set(image.python.requirements)),
        "constraints": sorted(set(image.python.constraints)),
        "cutoff": image.python.cutoff,
    }


def file_paths(name: str, ends: Mapping[str, str]) -> dict[str, str]:
    """Returns the paths of a lock's files below the root, by what they hold; `ends` is FILES or FILES_ON_IMAGE."""
    return {part: f"lockfiles/{name}.{end}" for part, end in ends.items()}
