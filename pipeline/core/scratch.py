"""A scratch folder for very many files: in memory if there is plenty, else on disk.

Sixty thousand files are made and removed again within a minute. Where the disk is told of every freed block at once
(mount option discard), removing them takes longer than installing them.
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
    """An empty folder for about `size` bytes, removed afterwards: in `memory` if it fits in easily, else in `beside`.

    What a killed process left in `memory` is removed first.
    """
    for left in abandoned_folders(memory):
        shutil.rmtree(left, ignore_errors=True)
    where = memory if fits_in_memory(size, memory, _available()) else beside
    with tempfile.TemporaryDirectory(prefix=_prefix(), dir=where) as made:
        yield Path(made)


def fits_in_memory(size: int, memory: Path, available: int) -> bool:
    """Whether `size` bytes take less than a third of the available memory, and less than half of the room there."""
    try:
        room = shutil.disk_usage(memory).free
    except OSError:
        return False
    return os.access(memory, os.W_OK) and size < available / 3 and size < room / 2


def _available() -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def abandoned_folders(memory: Path = MEMORY_FOLDER) -> Iterator[Path]:
    """The folders of processes that are gone."""
    for left in memory.glob(f"{PREFIX}*-*-*-*"):
        namespace, pid, start, *_ = left.name.removeprefix(PREFIX).split("-")
        if owners.is_gone(f"pid:[{namespace}] {pid} {start}"):
            yield left


def _prefix() -> str:
    """Who made a folder, as its name says it: /dev/shm may be shared with processes that cannot be seen from here."""
    namespace, pid, start = owners.current_owner().split()
    return f"{PREFIX}{namespace.removeprefix('pid:[').removesuffix(']')}-{pid}-{start}-"
