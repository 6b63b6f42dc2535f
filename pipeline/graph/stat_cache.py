"""Facts about files that need not be read again: sha256 by stat, for inputs, modules and tools.

A hash is taken from the cache only if size, mtime, ctime, inode and mode are what they were when the file was
read. ctime decides: mtimes are set by reproducible builds (all ours are equal) and by `cp -p`; nothing sets a ctime.
"""

# A Path for each of ten thousand files costs more than its stat.
# ruff: noqa: PTH116, PTH123

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.files import write_whole
from pipeline.core.locks import locked
from pipeline.core.procs import cancelled

SCHEMA = 2
TICK_NS = 20_000_000
"""Timestamps come from a clock that the kernel moves on every 1 to 10 ms: two writes may share one."""
COARSE_NS = 2_000_000_000
"""File systems that keep whole seconds (or, FAT, two)."""
LARGE_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20
MAX_READS = 5
PRUNE_ENTRIES = 50_000

Stat = list[int]
Known = tuple[Stat, str]


def signature(status: os.stat_result) -> Stat:
    """Returns the five numbers that stand for a file's content."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode]


class StatCache:
    """Facts about files, each with the stat under which it was found; kept in one file, safe with several runs."""

    def __init__(self, file: Path, *, now: Callable[[], int] = time.time_ns) -> None:
        self._file = file
        self._now = now
        self._lock = threading.Lock()
        self._new: dict[str, Known] = {}
        self._known: dict[str, Known] | None = None
        self.hashed_bytes = 0

    def sha256(self, path: Path | str, status: os.stat_result | None = None) -> str:
        """Returns the file's sha256 in hex. The file is read only if its stat is not known.

        Raises OSError if it cannot be read, TandemError if it never stops changing, Cancelled.
        """
        return self.fact("sha256", path, self.hash_file, status)

    def fact(
        self, kind: str, path: Path | str, find: Callable[[str], str], status: os.stat_result | None = None
    ) -> str:
        """Returns a text that `find` derives from a file's content, if it is not known; `kind` tells such texts apart.

        `status` is the file's stat, if the caller has it already. Raises what `find` raises, OSError.
        """
        name = os.fspath(path)
        key = f"{kind} {name}"
        status = status or os.stat(name)
        if (known := self._lookup(key)) and known[0] == signature(status):
            return known[1]
        return self._find(key, name, find)

    def forget(self, kind: str, path: Path | str) -> None:
        """Drop the text of that kind for a file; the next save() takes it out of the cache's file."""
        key = f"{kind} {os.fspath(path)}"
        if (known := self._lookup(key)) and known[1]:
            with self._lock:
                self._new[key] = ([], "")

    def hash_file(self, name: str) -> str:
        """Returns the sha256 of a file, read now. Raises OSError, Cancelled."""
        digest = hashlib.sha256()
        with open(name, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                self.hashed_bytes += len(chunk)
                if cancelled():
                    raise Cancelled("interrupted")
        return digest.hexdigest()

    def save(self, *, wait: bool = True) -> None:
        """Write what was learned back, merged with what other runs wrote meanwhile. Never fails a run.

        With `wait` unset, nothing is written while another run writes.
        """
        with self._lock:
            new, self._new = self._new, {}
        if not new:
            return
        with suppress(HostError, BlockingIOError), locked(self._file.with_suffix(".lock"), wait=wait):
            self._known = _there(self._load() | new)
            text = json.dumps({"schema": SCHEMA, "known": self._known}, separators=(",", ":"))
            write_whole(self._file, f"{_sum(text.encode())}\n{text}", sync=False)

    def _lookup(self, key: str) -> Known | None:
        known = self._raw(key)
        return known if isinstance(known, (list, tuple)) and len(known) == 2 else None

    def _raw(self, key: str) -> Known | None:
        if self._known is None:
            with self._lock:
                if self._known is None:
                    self._known = self._load()
        return self._new.get(key) or self._known.get(key)

    def _load(self) -> dict[str, Known]:
        # It only saves work: what is damaged, or not understood, is found again.
        try:
            checksum, _, text = self._file.read_bytes().partition(b"\n")
        except OSError:
            return {}
        if checksum.decode("latin-1") != _sum(text):
            return {}
        content = json.loads(text)
        known: dict[str, Known] = content["known"] if content["schema"] == SCHEMA else {}
        return known

    def _find(self, key: str, name: str, find: Callable[[str], str]) -> str:
        for _ in range(MAX_READS):
            before = os.stat(name)
            start = self._settle(before)
            value = find(name)
            if signature(before) == signature(os.stat(name)):
                return self._keep(key, before, start, value)
        raise TandemError(f"{name}: changes all the time", hint="wait until whatever writes it has ended")

    def _keep(self, key: str, before: os.stat_result, start: int, value: str) -> str:
        """Remember a fact, unless the file could be changed again without any of its five numbers moving."""
        if before.st_ctime_ns < start - _grain(before):
            with self._lock:
                self._new[key] = (signature(before), value)
        return value

    def _settle(self, status: os.stat_result) -> int:
        """Returns the time. Waits for a large file's last tick to end first, so that its hash can be kept."""
        now = self._now()
        if status.st_size >= LARGE_BYTES and 0 <= now - status.st_ctime_ns <= TICK_NS and _grain(status) == TICK_NS:
            time.sleep(TICK_NS / 1e9)
            now = self._now()
        return now


def _sum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _there(known: dict[str, Known]) -> dict[str, Known]:
    """Drops files that do not exist any more, once there are many."""
    if len(known) < PRUNE_ENTRIES:
        return known
    return {key: value for key, value in known.items() if os.path.lexists(key[key.find(" /") + 1 :])}


def _grain(status: os.stat_result) -> int:
    return TICK_NS if status.st_ctime_ns % 1_000_000_000 else COARSE_NS


def is_executable(mode: int) -> bool:
    """Returns whether the owner may execute it: the one bit of a file's mode that counts, as in git.

    The others follow from the umask of whoever cloned the checkout.
    """
    return bool(mode & stat.S_IXUSR)
