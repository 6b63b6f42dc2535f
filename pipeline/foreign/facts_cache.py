"""What was found out about an image, kept by its digest below artifacts/readings/, so that nothing is read twice."""

import gzip
import hashlib
import zlib
from collections.abc import Iterable
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
FACTS_CODE = (
    *(f"foreign/{file.stem}" for file in sorted(ROOM.glob("*.py"))),
    *("core/names", "core/platforms", "config/launcher_contract"),
)
"""The modules that decide what the facts of an image are, as paths below pipeline/ without .py.

Facts that other code found are not used: the image is read again.
"""


def scan_image(reference: str, digest: str, platform: str, root: Path, log: Log) -> ImageScan:
    """Returns what an image of that digest holds: from the cache, or after it was pulled and read.

    Raises as pull.pull_image() and pull.read_image() do.
    """
    file = cache_file(root, digest, platform, "reading", FACTS_CODE)
    cached = load(file, ImageScan)
    if cached is not None:
        log.line(f"{pull.repository_of(reference)}@{digest} was read before")
        return cached
    pull.pull_image(reference, digest, platform, log)
    scan = pull.read_image(reference, digest, platform, log)
    store(file, scan)
    return scan


def cache_file(root: Path, digest: str, platform: str, kind: str, code: Iterable[str]) -> Path:
    """Returns the file for facts of a kind about an image; `code` are the modules that decide them.

    The name holds all that decides the facts. It starts with the image's digest, by which `./doitw gc` knows it.
    """
    sources = (ROOM.parent / f"{name}.py" for name in code)
    code_digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    digits = digest.partition(":")[2]
    return root / FOLDER / f"{digits}-{platform.replace('/', '-')}-{kind}-{code_digest}.msgpack.gz"


def load(file: Path, shape: type[T]) -> T | None:
    """Returns what is kept in a file; None if there is no such file, or if it is damaged."""
    try:
        return msgspec.msgpack.decode(gzip.decompress(file.read_bytes()), type=shape)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError):
        return None


def store(file: Path, facts: msgspec.Struct) -> None:
    """Keeps facts for the next time. A folder that cannot be written costs only the time to find them again."""
    try:
        with replacing(file) as temporary:
            temporary.write_bytes(gzip.compress(msgspec.msgpack.encode(facts), compresslevel=1))
    except OSError:
        return
