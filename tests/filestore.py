"""Files that the by-hash store has before a test begins."""

from pathlib import Path

from pipeline.core import store
from pipeline.core.files import write_whole


def put_into_store(file: Path) -> str:
    """Copies a file into the store; returns its SHA-256."""
    sha256 = store.file_digest(file)
    write_whole(store.folder() / sha256, file.read_bytes(), sync=False)
    return sha256
