"""The base of a combined image: it is in the engine's store, and its paths are listed, so that none is replaced."""

import gzip
from pathlib import Path

from pipeline.core import store
from pipeline.core.log import Log
from pipeline.foreign import facts_cache, pull
from pipeline.image.results import PulledImage
from pipeline.lock.contents import CombinedLock

LIST = "paths.gz"


def pull_base(locked: CombinedLock, root: Path, into: Path, log: Log) -> PulledImage:
    """Pulls the base of a combined image, unless the engine has it, and writes its paths to `into`/paths.gz.

    Raises TandemError, HostError.
    """
    name, _, digest = locked.base.partition("@")
    pull.pull_image(name, digest, locked.platform, log)
    paths = facts_cache.scan_image(name, digest, locked.platform, root, log).paths
    with (into / LIST).open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(b"\0".join(paths))
    return PulledImage(base=locked.base, digest=digest, paths=len(paths), sha256=store.file_digest(into / LIST))


def read_paths(file: Path) -> dict[str, str]:
    """Returns the list that pull_base() wrote: path below the root → "d" for a folder, "l" for a link, "f" otherwise.

    Bytes of a path that are not UTF-8 become surrogates, as in all file names that Python gives.
    """
    with gzip.open(file) as packed:
        entries = packed.read().decode("utf-8", "surrogateescape").split("\0")
    return {entry[2:]: entry[0] for entry in entries}
