"""A lock on a file: the kernel frees it when its holder ends, however it ends.

Who waited for a file that was removed meanwhile would hold a lock that nobody else can see. So what is taken is the
lock of the file that lies at the path.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def take(path: Path, *, wait: bool) -> int:
    """Lock the file at `path`, made if it is absent, and return its descriptor: closing that frees the lock.

    Raises BlockingIOError if another one holds it and it must not `wait`, OSError if it cannot be made.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if holds(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def holds(handle: int, path: Path) -> bool:
    """Whether a lock that was taken is that of the file at `path`: it may have been removed, and made again."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


@contextmanager
def passing(path: Path) -> Iterator[None]:
    """Hold a lock whose file goes with it, as there may be any number of them."""
    handle = take(path, wait=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)
