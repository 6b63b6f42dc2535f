"""Files that are whole or absent: a temporary name, a sync, a rename."""

import errno
import os
from pathlib import Path

from pipeline.core.errors import HostError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


def write_whole(path: Path, text: str, *, sync: bool = True) -> None:
    """Put `text` at `path` so that a reader, or a kill at any moment, sees the old file or the new one.

    `sync` makes it survive a power cut too; without it the call costs a few dozen microseconds.
    Raises HostError if the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise not_writable(path, error) from error
    if sync:
        _sync_folder(path.parent)


def point(link: Path, name: str) -> None:
    """Make `link` a symbolic link to `name` beside it, in one step. Raises HostError if it cannot be written."""
    if link.is_symlink() and str(link.readlink()) == name:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(name)
        temporary.replace(link)
    except OSError as error:
        raise not_writable(link, error) from error


def not_writable(path: Path, error: OSError) -> HostError:
    """The failure to report when something below artifacts/ cannot be written."""
    return HostError(
        f"{path}: cannot be written: {error.strerror or error}",
        hint=f"results, logs and locks are kept there; {path.parent} must be writable, with space left",
    )


def of_the_disk(error: BaseException) -> BaseException:
    """An error of the operating system that no code of ours can help, as an expected failure; any other as it is."""
    if isinstance(error, OSError) and error.errno in FULL:
        where = f"{error.filename}: " if error.filename else ""
        return HostError(
            f"{where}{error.strerror}", hint="`df -h` says which disk is full; `./doitw gc` frees some space"
        )
    return error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
