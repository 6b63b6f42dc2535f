"""What was found out about somebody else's image, kept by digest below artifacts/readings/: nobody looks twice."""

import gzip
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from pipeline.core.files import replacing
from pipeline.core.log import Log
from pipeline.foreign import pull
from pipeline.foreign.pull import ImageScan

T = TypeVar("T", bound=msgspec.Struct)
FOLDER = "artifacts/readings"
ROOM = Path(__file__).parent
# What decides what a reading holds: every module of this room. One that other code made is made anew.
FACTS_CODE = tuple(f"foreign/{file.stem}" for file in sorted(ROOM.glob("*.py")))


def scan_image(reference: str, digest: str, platform: str, root: Path, log: Log) -> ImageScan:
    """An image of that digest, pulled and read unless that was done before. Raises as reader.pull() and read()."""
    file = cache_file(root, digest, platform, "reading", FACTS_CODE)
    kept = load(file, ImageScan)
    if kept is not None:
        log.line(f"{pull.repository_of(reference)}@{digest} was read before")
        return kept
    pull.pull_image(reference, digest, platform, log)
    found = pull.read_image(reference, digest, platform, log)
    store(file, found)
    return found


def cache_file(root: Path, digest: str, platform: str, what: str, code: Iterable[str]) -> Path:
    """Where a look at an image is kept: named by all that decides it, the digest first, by which `doit gc` knows it."""
    made_by = hashlib.sha256(b"\0".join((ROOM.parent / f"{name}.py").read_bytes() for name in code)).hexdigest()[:12]
    digits = digest.partition(":")[2]
    return root / FOLDER / f"{digits}-{platform.replace('/', '-')}-{what}-{made_by}.msgpack.gz"


def load(file: Path, shape: type[T]) -> T | None:
    """What is kept in a file; None if that is nothing, or damaged."""
    try:
        return msgspec.msgpack.decode(gzip.decompress(file.read_bytes()), type=shape)
    except (OSError, EOFError, msgspec.DecodeError):
        return None


def store(file: Path, value: msgspec.Struct) -> None:
    """Keep it for the next time; a folder that cannot be written costs that time only."""
    with suppress(OSError), replacing(file) as temporary:
        temporary.write_bytes(gzip.compress(msgspec.msgpack.encode(value), compresslevel=1))
