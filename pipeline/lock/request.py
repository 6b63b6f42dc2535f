"""What an image asks of its lock, spelled out by hand (a new key of image.yaml does not unsettle old locks); and where
that lies.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.config.models import CombinedImage, DebianImage, Image

_SHARED = {"head": "lock.json", "wheels": "requirements.txt", "interpreter": "interpreter.txt"}
FILES = {**_SHARED, "debs": "debs.txt"}
"""The files of a lock of an image made from Debian packages: what they hold → the end of their name."""
FILES_ON_IMAGE = {**_SHARED, "reading": "reading.json"}
"""The files of a lock of an image on top of another image."""


def request(image: Image) -> dict[str, Any]:
    """The request as plain JSON; a lock that holds an equal one answers the image."""
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
