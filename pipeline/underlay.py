"""The image below a combined one: in the engine's store, and every path that it has, so that none is replaced."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import reader, rootview, store
from pipeline.lockfile import Lock
from pipeline.log import Log, step

LIST = "paths.gz"


def make(locked: Lock, into: Path, log: Log) -> dict[str, Any]:
    """Pull the base of a combined image if it is not there, and write its paths to `into`/paths.gz; see read().

    Returns `base` (NAME@sha256:…), `digest`, `paths` (how many), and `sha256` of the list. Raises TandemError,
    HostError.
    """
    name, _, digest = locked.base.partition("@")
    reader.pull(name, digest, locked.platform, log)
    with step(log, f"paths of {locked.base}"):
        lines = sorted(_paths(locked))
    with (into / LIST).open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write("\0".join(lines).encode())
    return {"base": locked.base, "digest": digest, "paths": len(lines), "sha256": store.digest(into / LIST)}


def read(file: Path) -> dict[str, str]:
    """The list that make() wrote: path below the root → "d" for a folder, "l" for a link, "f" for anything else."""
    with gzip.open(file) as packed:
        return {line[2:]: line[0] for line in packed.read().decode().split("\0")}


def _paths(locked: Lock) -> Iterator[str]:
    """Every path of the image, from a container of it that never starts."""
    with reader.created(locked.base, locked.platform) as (identity, _):
        for path, node in rootview.view(reader.exported(identity), ()).nodes.items():
            yield f"{node.kind[0]} {path.lstrip('/')}"
