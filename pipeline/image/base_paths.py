"""The image below a combined one: in the engine's store, and every path that it has, so that none is replaced."""

import gzip
from pathlib import Path

from pipeline.core import store
from pipeline.core.log import Log
from pipeline.foreign import facts_cache, pull
from pipeline.image.results import PulledImage
from pipeline.lock.contents import CombinedLock

LIST = "paths.gz"


def pull_base(locked: CombinedLock, root: Path, into: Path, log: Log) -> PulledImage:
    """Pulls the base of a combined image if it is not there, and writes its paths to `into`/paths.gz.

    Raises TandemError, HostError.
    """
    name, _, digest = locked.base.partition("@")
    pull.pull_image(name, digest, locked.platform, log)
    lines = facts_cache.scan_image(name, digest, locked.platform, root, log).paths
    with (into / LIST).open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(b"\0".join(lines))
    return PulledImage(base=locked.base, digest=digest, paths=len(lines), sha256=store.digest(into / LIST))


def read_paths(file: Path) -> dict[str, str]:
    """Returns the list that pull_base() wrote: path below the root → "d" for a folder, "l" for a link, "f" otherwise.

    Bytes of a path that are not UTF-8 become surrogates, as in all file names that Python gives.
    """
    with gzip.open(file) as packed:
        return {line[2:]: line[0] for line in packed.read().decode("utf-8", "surrogateescape").split("\0")}
