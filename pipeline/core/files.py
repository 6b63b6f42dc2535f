"""Writes files so that a reader, or a kill at any moment, finds the old file or the new one, never a part."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.errors import HostError

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


def cache_folder() -> Path:
    """Returns the user's own folder for what may be lost and made again; it need not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # XDG Base Directory Specification 0.8: a path that is not absolute is to be ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "tandem"


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what the block writes there takes the place of `path` at its end.

    If the block fails, `path` stays as it was. With `sync`, the file survives a power cut too. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        if sync:
            _sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        _sync(path.parent)


def write_whole(path: Path, content: str | bytes, *, mode: int | None = None, sync: bool = True) -> None:
    """Replaces the content of a file, and its permissions by `mode` if that is given.

    Without `sync` the call costs a few dozen microseconds. Raises HostError if the file cannot be written.
    """
    try:
        with replacing(path, sync=sync) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            if mode is not None:
                temporary.chmod(mode)
    except OSError as error:
        raise write_failure(path, error) from error


def replace_link(link: Path, name: str) -> None:
    """Makes `link` a symbolic link to `name` beside it, in one step. Raises HostError if it cannot be written."""
    if link.is_symlink() and str(link.readlink()) == name:
        return
    try:
        with replacing(link) as temporary:
            temporary.symlink_to(name)
    except OSError as error:
        raise write_failure(link, error) from error


def write_failure(path: Path, error: OSError) -> HostError:
    """Returns the failure to report when a file cannot be written."""
    return HostError(
        f"{path}: cannot be written: {error.strerror or error}",
        hint=f"{path.parent} must be writable, with space left",
    )


def as_disk_failure(error: BaseException) -> BaseException:
    """Returns an expected failure in place of an error of a full or read-only disk, and any other error as it is."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        where = f"{error.filename}: " if error.filename else ""
        return HostError(
            f"{where}{error.strerror}", hint="`df -h` says which disk is full; `./doitw gc` frees some space"
        )
    return error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
