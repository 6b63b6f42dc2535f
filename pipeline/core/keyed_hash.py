"""Hashes of secrets: they tell that one changed, and whoever reads them cannot try guesses.

The hashes are keyed with random bytes that lie beside the store and that only their owner can read. Where the key is
lost or cannot be kept, every secret counts as changed.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pipeline.core.files import cache_folder

KEY_FILE = "hash-key"
KEY_BYTES = 32
SHOWN_DIGITS = 16


def keyed_hash(name: str, secret: str) -> str:
    """Returns a short hash of the secret of that name, for this user; equal secrets of two names differ."""
    key = _key(cache_folder() / KEY_FILE)
    digest = hashlib.blake2b(f"{name}\0{secret}".encode(errors="surrogateescape"), key=key).hexdigest()
    return f"keyed {digest[:SHOWN_DIGITS]}"


@cache
def _key(file: Path) -> bytes:
    key = _read(file)
    if key is None:
        with suppress(OSError):
            _create(file)
        key = _read(file)
    return key or os.urandom(KEY_BYTES)


def _read(file: Path) -> bytes | None:
    try:
        key = file.read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _create(file: Path) -> None:
    """Makes the key, unless another process was first; a damaged one is replaced. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(os.urandom(KEY_BYTES))
        with _alone_in(file.parent):
            if _read(file) is None:
                _name(new, file)
    finally:
        new.unlink(missing_ok=True)


def _name(new: Path, file: Path) -> None:
    """Gives the new key its name: not over one that appears meanwhile, as far as the filesystem has hard links."""
    if not file.exists():
        with suppress(OSError):
            file.hardlink_to(new)
    if _read(file) is None:  # a damaged key, or a filesystem without hard links (exFAT, SMB)
        new.replace(file)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keeps other processes that make a key waiting, where the filesystem has such locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
