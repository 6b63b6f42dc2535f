"""Keeps every file that was ever downloaded, by its hash: mirrors drop old versions, this machine does not.

A file is at `$XDG_CACHE_HOME/tandem/sha256/<hex>`. It gets there by one rename, after its hash was checked;
fetch_all() checks the hash again at each use.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.core import procs
from pipeline.core.downloads import Downloader, UnreachableError
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.files import cache_folder
from pipeline.core.locks import locked
from pipeline.core.log import Log

CHUNK_BYTES = 1 << 18
TRIES = 5
WORKERS = 6
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Download:
    """A file to download."""

    name: str
    urls: tuple[str, ...]
    """The addresses to try, in order."""
    sha256: str
    """The file's hash, as hex."""
    size: int
    """The file's size in bytes."""


class MissingFileError(TandemError):
    """Neither the store nor any address of `item` has the file."""

    def __init__(self, item: Download, why: str) -> None:
        super().__init__(f"{item.name} is neither in the store nor at any address: {why}")
        self.item = item


class _TransientError(Exception):
    """A failure that may not happen again at another try."""


def folder() -> Path:
    """Returns the store's folder, which may not exist yet."""
    return cache_folder() / "sha256"


def stored_file(sha256: str) -> Path | None:
    """Returns the stored file with this hash, or None. Does not check its bytes again."""
    path = folder() / sha256
    return path if path.is_file() else None


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_all(
    items: Iterable[Download], log: Log, *, title: str, proxies: Mapping[str, str] | None = None
) -> dict[str, Path]:
    """Takes files from the store, and downloads those that it lacks, several at a time; returns paths by SHA-256.

    An interrupted download continues where it stopped. After a reset or a 5xx it is tried again with growing pauses;
    after a 4xx it is not. `proxies` maps a scheme to a proxy's URL; without it those of the environment are used.
    Raises MissingFileError for the first file that no address has, HostError if the disk refuses, Cancelled.
    """
    from concurrent.futures import ThreadPoolExecutor

    wanted = {item.sha256: item for item in items}
    meter = _DownloadMeter(log, title, sum(item.size for item in wanted.values()))
    web = Downloader(proxies, WORKERS)
    failed = threading.Event()

    def fetch(item: Download) -> Path | None:
        if failed.is_set():
            return None
        try:
            return _get_or_download(item, meter, web)
        except OSError as error:
            failed.set()
            raise HostError(
                f"{error.filename or folder()}: {error.strerror}",
                hint=f"downloads are kept in {folder().parent}: it must be writable, with space left"
                " (XDG_CACHE_HOME sets another place)",
            ) from error
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(WORKERS) as pool:
        pending = [pool.submit(fetch, item) for item in sorted(wanted.values(), key=lambda item: -item.size)]
    web.close()
    for future in pending:
        if (error := future.exception()) is not None:
            raise error
    meter.end()
    return {path.name: path for future in pending if (path := future.result()) is not None}


class _DownloadMeter:
    """Counts the bytes of all downloads together, and logs them at most five times a second."""

    def __init__(self, log: Log, title: str, total: int) -> None:
        self._log, self._title, self._total = log, title, total
        self._done = self._fetched = 0
        self._logged_at = 0.0
        self._lock = threading.Lock()

    def add(self, count: int, *, fetched: bool) -> None:
        import time

        with self._lock:
            self._done += count
            self._fetched += count if fetched else 0
            if time.monotonic() - self._logged_at > 0.2:
                self._logged_at = time.monotonic()
                self._log.progress(self._title, self._done, self._total, "B")

    def end(self) -> None:
        fetched = f"{self._fetched / 1e6:.1f} MB fetched" if self._fetched else "all of it was in the store"
        self._log.line(f"{self._title}: {self._total / 1e6:.1f} MB, {fetched}")


def _get_or_download(item: Download, meter: _DownloadMeter, web: Downloader) -> Path:
    stored = stored_file(item.sha256)
    if stored is not None:
        if file_digest(stored) == item.sha256:
            meter.add(item.size, fetched=False)
            return stored
        stored.unlink(missing_ok=True)  # damaged on disk
    with _open_partial(item.sha256) as part:
        if (stored := stored_file(item.sha256)) is not None:  # another run has downloaded it meanwhile
            meter.add(item.size, fetched=False)
            return stored
        reasons = []
        for url in item.urls:
            try:
                return _download(url, item, part, meter, web)
            except MissingFileError as error:
                reasons.append(str(error))
        raise MissingFileError(item, "; ".join(reasons) or "no address is known")


@contextlib.contextmanager
def _open_partial(sha256: str) -> Iterator[IO[bytes]]:
    """Yields the file that a download grows in; no other process has it as long as it is open."""
    path = folder().parent / "partial" / sha256
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path), path.open("ab+") as part:
        try:
            yield part
        finally:
            if stored_file(sha256) is not None or part.seek(0, os.SEEK_END) == 0:
                path.unlink(missing_ok=True)


def _download(url: str, item: Download, part: IO[bytes], meter: _DownloadMeter, web: Downloader) -> Path:
    """Downloads from one address, with several tries. Raises MissingFileError, worded for that address."""
    from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    retrying = Retrying(
        retry=retry_if_exception_type((_TransientError, UnreachableError)),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(0.5, max=8),
    )
    try:
        part.seek(0, os.SEEK_END)
        meter.add(part.tell(), fetched=False)
        retrying(_transfer, url, item, part, meter, web)
    except RetryError as error:
        raise _missing_at_address(item, str(error.last_attempt.exception())) from error
    part.flush()
    if _digest_of_handle(part) != item.sha256:
        part.truncate(0)
        raise _missing_at_address(item, f"{url} has other bytes than the lock's")
    return _move_into_store(Path(part.name), item.sha256)


def _missing_at_address(item: Download, why: str) -> MissingFileError:
    error = MissingFileError(item, why)
    error.args = (why,)
    return error


def _move_into_store(part: Path, sha256: str) -> Path:
    """Renames a finished download into the store. Does not sync: fetch_all() checks the hash at each use."""
    stored = folder() / sha256
    stored.parent.mkdir(parents=True, exist_ok=True)
    part.chmod(0o644)
    part.replace(stored)
    return stored


def _digest_of_handle(part: IO[bytes]) -> str:
    part.seek(0)
    return hashlib.file_digest(part, "sha256").hexdigest()  # type: ignore[arg-type]  # IO is readable enough


def _transfer(url: str, item: Download, part: IO[bytes], meter: _DownloadMeter, web: Downloader) -> None:
    """Downloads the rest of the file. Raises UnreachableError, _TransientError or MissingFileError."""
    present = part.seek(0, os.SEEK_END)
    if present == item.size:
        return
    with web.get(url, present if present < item.size else 0) as (status, read):
        if status in RETRIED:
            raise _TransientError(f"{url} answers {status}")
        if status not in {200, 206}:
            raise _missing_at_address(item, f"{url} answers {status}")
        if status == 200:
            part.truncate(0)
            meter.add(-present, fetched=False)
        _copy(read, part, meter)
    if part.tell() < item.size:
        raise _TransientError(f"{url}: the connection ended after {part.tell()} of {item.size} bytes")


def _copy(read: Callable[[int], bytes], part: IO[bytes], meter: _DownloadMeter) -> None:
    while chunk := read(CHUNK_BYTES):
        if procs.cancelled():
            raise Cancelled("interrupted")
        part.write(chunk)
        meter.add(len(chunk), fetched=True)
