"""Makes scratch folders for very many files: in memory if there is plenty of it, else on disk.

A build installs sixty thousand files and removes them within a minute. On a disk that is mounted with `discard`,
removing them takes longer than installing them.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core import owners

MEMORY_FOLDER = Path("/dev/shm")
PREFIX = "tandem-"


@contextmanager
def scratch_folder(size: int, beside: Path, memory: Path = MEMORY_FOLDER) -> Iterator[Path]:
    """Yields an empty folder for about `size` bytes, and removes it at the end of the block.

    The folder is in `memory` if the files fit there easily, else in `beside`. Folders that killed processes left in
    `memory` are removed first.
    """
    for abandoned in abandoned_folders(memory):
        shutil.rmtree(abandoned, ignore_errors=True)
    where = memory if fits_in_memory(size, memory, _available()) else beside
    with tempfile.TemporaryDirectory(prefix=_prefix(), dir=where) as folder:
        yield Path(folder)


def fits_in_memory(size: int, memory: Path, available: int) -> bool:
    """Returns whether `size` bytes are less than a third of the available memory and half of the free space there."""
    try:
        free = shutil.disk_usage(memory).free
    except OSError:
        return False
    return os.access(memory, os.W_OK) and size < available / 3 and size < free / 2


def _available() -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def abandoned_folders(memory: Path = MEMORY_FOLDER) -> Iterator[Path]:
    """Yields the folders of processes that have ended."""
    for folder in memory.glob(f"{PREFIX}*-*-*-*"):
        namespace, pid, start, *_ = folder.name.removeprefix(PREFIX).split("-")
        if owners.is_gone(f"pid:[{namespace}] {pid} {start}"):
            yield folder


def _prefix() -> str:
    """Returns the beginning of a folder's name, which names its process.

    /dev/shm may be shared with processes of other PID namespaces, so the name has the namespace in it.
    """
    namespace, pid, start = owners.current_owner().split()
    return f"{PREFIX}{namespace.removeprefix('pid:[').removesuffix(']')}-{pid}-{start}-"
