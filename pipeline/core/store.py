"""The by-hash store of everything ever fetched: mirrors forget old versions, this machine does not.

A file lies at `$XDG_CACHE_HOME/tandem/sha256/<hex>` and gets there by one rename, after its hash was checked;
fetch_all() checks it again at each use.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.core import procs
from pipeline.core.downloads import UnreachableError, Web
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.locks import locked
from pipeline.core.log import Log

CHUNK = 1 << 18
TRIES = 5
WORKERS = 6
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Item:
    """A file to have: where it may be found (tried in order), its SHA-256 as hex, its size in bytes."""

    name: str
    urls: tuple[str, ...]
    sha256: str
    size: int


class MissingError(TandemError):
    """None of the addresses of `item` has the file, and neither has the store."""

    def __init__(self, item: Item, why: str) -> None:
        super().__init__(f"{item.name} is neither in the store nor at any address: {why}")
        self.item = item


class _Passing(Exception):
    """A failure that another try may cure."""


def folder() -> Path:
    """The store's folder, which need not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # XDG Base Directory Specification 0.8: a path that is not absolute is to be ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "tandem" / "sha256"


def get(sha256: str) -> Path | None:
    """The stored file with this hash, or None. Its bytes were checked when it was stored, not now."""
    path = folder() / sha256
    return path if path.is_file() else None


def add(path: Path, sha256: str) -> Path:
    """Copy a file into the store under its hash. Raises TandemError if its bytes have another hash."""
    if digest(path) != sha256:
        raise TandemError(f"{path}: its SHA-256 is not {sha256}")
    there = folder() / sha256
    there.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=there.parent, prefix=".", delete=False) as copy, path.open("rb") as file:
        shutil.copyfileobj(file, copy, CHUNK)
    Path(copy.name).replace(there)
    return there


def digest(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(url: str, sha256: str, size: int, log: Log, *, proxies: Mapping[str, str] | None = None) -> Path:
    """Have one file; see fetch_all()."""
    item = Item(url.rsplit("/", 1)[-1], (url,), sha256, size)
    return fetch_all([item], log, title=item.name, proxies=proxies)[sha256]


def fetch_all(
    items: Iterable[Item], log: Log, *, title: str, proxies: Mapping[str, str] | None = None
) -> dict[str, Path]:
    """Have many files, several at a time: from the store if it holds the right bytes, else from their addresses.

    What was interrupted goes on where it stopped. Resets and 5xx are tried again with growing pauses, 4xx are not.
    `proxies` maps a scheme to a proxy's URL; without it the environment's are used. Returns paths by SHA-256.
    Raises MissingError for the first item that cannot be had, Cancelled if the run was interrupted.
    """
    from concurrent.futures import ThreadPoolExecutor

    wanted = {item.sha256: item for item in items}
    meter = _Meter(log, title, sum(item.size for item in wanted.values()))
    web = Web(proxies, WORKERS)
    failed = threading.Event()

    def one(item: Item) -> Path | None:
        if failed.is_set():
            return None
        try:
            return _have(item, meter, web)
        except OSError as error:
            failed.set()
            raise HostError(
                f"{error.filename or folder()}: {error.strerror}",
                hint=f"what is fetched is kept in {folder().parent}: it must be writable, with space left"
                " (XDG_CACHE_HOME puts it elsewhere)",
            ) from error
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(WORKERS) as pool:
        pending = [pool.submit(one, item) for item in sorted(wanted.values(), key=lambda item: -item.size)]
    web.close()
    for future in pending:
        if (error := future.exception()) is not None:
            raise error
    meter.end()
    return {path.name: path for future in pending if (path := future.result()) is not None}


class _Meter:
    """Bytes of all downloads together, told to the log at most five times a second."""

    def __init__(self, log: Log, title: str, total: int) -> None:
        self._log, self._title, self._total = log, title, total
        self._done = self._fetched = 0
        self._told = 0.0
        self._lock = threading.Lock()

    def add(self, count: int, *, fetched: bool) -> None:
        import time

        with self._lock:
            self._done += count
            self._fetched += count if fetched else 0
            if time.monotonic() - self._told > 0.2:
                self._told = time.monotonic()
                self._log.progress(self._title, self._done, self._total, "B")

    def end(self) -> None:
        fetched = f"{self._fetched / 1e6:.1f} MB fetched" if self._fetched else "all of it was in the store"
        self._log.line(f"{self._title}: {self._total / 1e6:.1f} MB, {fetched}")


def _have(item: Item, meter: _Meter, web: Web) -> Path:
    stored = get(item.sha256)
    if stored is not None:
        if digest(stored) == item.sha256:
            meter.add(item.size, fetched=False)
            return stored
        stored.unlink(missing_ok=True)  # damaged on disk: fetched anew
    with _partial(item.sha256) as part:
        if (stored := get(item.sha256)) is not None:  # another run brought it meanwhile
            meter.add(item.size, fetched=False)
            return stored
        reasons = []
        for url in item.urls:
            try:
                return _download(url, item, part, meter, web)
            except MissingError as error:
                reasons.append(str(error))
        raise MissingError(item, "; ".join(reasons) or "no address is known")


@contextlib.contextmanager
def _partial(sha256: str) -> Iterator[IO[bytes]]:
    """The file that a download grows in, ours alone as long as it is open."""
    path = folder().parent / "partial" / sha256
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path), path.open("ab+") as part:
        try:
            yield part
        finally:
            if get(sha256) is not None or part.seek(0, os.SEEK_END) == 0:
                path.unlink(missing_ok=True)


def _download(url: str, item: Item, part: IO[bytes], meter: _Meter, web: Web) -> Path:
    """One address, several tries. Raises MissingError (worded for one address) if it does not have the file."""
    from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    retrying = Retrying(
        retry=retry_if_exception_type((_Passing, UnreachableError)),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(0.5, max=8),
    )
    try:
        part.seek(0, os.SEEK_END)
        meter.add(part.tell(), fetched=False)
        retrying(_transfer, url, item, part, meter, web)
    except RetryError as error:
        raise _at(item, str(error.last_attempt.exception())) from error
    part.flush()
    if _digest_of(part) != item.sha256:
        part.truncate(0)
        raise _at(item, f"{url} has other bytes than the lock's")
    return _keep(Path(part.name), item.sha256)


def _at(item: Item, why: str) -> MissingError:
    error = MissingError(item, why)
    error.args = (why,)
    return error


def _keep(part: Path, sha256: str) -> Path:
    """Rename a finished download into the store; not synced, for fetch_all() checks the hash at each use."""
    there = folder() / sha256
    there.parent.mkdir(parents=True, exist_ok=True)
    part.chmod(0o644)
    part.replace(there)
    return there


def _digest_of(part: IO[bytes]) -> str:
    part.seek(0)
    return hashlib.file_digest(part, "sha256").hexdigest()  # type: ignore[arg-type]  # IO is readable enough


def _transfer(url: str, item: Item, part: IO[bytes], meter: _Meter, web: Web) -> None:
    """Bring what is still missing of the file. Raises UnreachableError, _Passing or MissingError."""
    have = part.seek(0, os.SEEK_END)
    if have == item.size:
        return
    with web.get(url, have if have < item.size else 0) as (status, read):
        if status in RETRIED:
            raise _Passing(f"{url} answers {status}")
        if status not in {200, 206}:
            raise _at(item, f"{url} answers {status}")
        if status == 200:
            part.truncate(0)
            meter.add(-have, fetched=False)
        _copy(read, part, meter)
    if part.tell() < item.size:
        raise _Passing(f"{url}: the connection ended after {part.tell()} of {item.size} bytes")


def _copy(read: Callable[[int], bytes], part: IO[bytes], meter: _Meter) -> None:
    while chunk := read(CHUNK):
        if procs.cancelled():
            raise Cancelled("interrupted")
        part.write(chunk)
        meter.add(len(chunk), fetched=True)
