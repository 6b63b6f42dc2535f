"""What an image asks of its lock, spelled out by hand (a new key of image.yaml does not unsettle old locks); and where
that lies.
"""

from typing import Any

from pipeline.config.models import CombinedImage, DebianImage, Image

ENDS = {"head": "lock.json", "wheels": "requirements.txt", "interpreter": "interpreter.txt"}


def request(image: Image) -> dict[str, Any]:
    """The request as plain JSON; a lock that holds an equal one answers the image."""
    return _combined(image) if isinstance(image, CombinedImage) else _debian(image)


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


def files(name: str, *, on_image: bool = False) -> dict[str, str]:
    """The paths of a lock's files below the root, by what they hold."""
    ends = {**ENDS, **({"reading": "reading.json"} if on_image else {"debs": "debs.txt"})}
    return {part: f"lockfiles/{name}.{end}" for part, end in ends.items()}
