"""Locks on files (flock(2)): the kernel frees a lock when the process that holds it ends, however it ends.

A waiter on a file that was removed meanwhile would get a lock that no other process can see. So the lock that is
taken is always that of the file that is at the path now.
"""

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from pipeline.core.errors import BusyError, ConfigError
from pipeline.core.files import write_failure
from pipeline.core.log import Log
from pipeline.core.waiting import wait_until

TIMEOUT_VARIABLE = "TANDEM_LOCK_TIMEOUT"
DEFAULT_TIMEOUT_S = 3600
POLL_INTERVAL_S = 0.1
SIGNING_S = 0.2
"""The longest time from taking a lock to signing its file."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a lock. `since` is in seconds since 1970."""

    pid: int
    since: float

    def __str__(self) -> str:
        return f"process {self.pid}, since {datetime.fromtimestamp(self.since).astimezone():%Y-%m-%d %H:%M:%S}"


def take_lock(path: Path, *, wait: bool) -> int:
    """Locks the file at `path`, which is made if it is absent; returns its descriptor. Closing that frees the lock.

    Raises BlockingIOError if another process holds the lock and `wait` is false, HostError if the file cannot be made.
    """
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise write_failure(path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if holds_lock(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def holds_lock(handle: int, path: Path) -> bool:
    """Returns whether a lock that was taken is that of the file at `path`, which may have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


@contextmanager
def locked(path: Path, *, wait: bool = True, remove: bool = False) -> Iterator[None]:
    """Holds a lock during the block, and removes its file at the end if `remove` is set. Raises as take_lock()."""
    handle = take_lock(path, wait=wait)
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Holds a lock on a folder itself during the block, which needs no file in it."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def hold_lock(
    path: Path, *, what: str, log: Log | None, state: str = "run", timeout_s: float | None = None
) -> Iterator[Callable[[], None]]:
    """Holds the lock of `what` during the block. While another process holds it, waits and says for which one.

    Messages say that `what` is `state` by that process. The file names the process that holds the lock. The block gets
    a function to call before a result counts: if the file was removed, as by `rm -rf artifacts`, it takes the lock
    again, and raises BusyError if another process was quicker.
    Raises BusyError after `timeout_s` seconds (lock_timeout_s() by default), or at once without a log; ConfigError if
    the holder has started this process; Cancelled; HostError if the file cannot be written.
    """
    timeout_s = lock_timeout_s() if timeout_s is None else timeout_s
    handles: list[int] = []
    try:
        if not _take_signed(path, handles):
            _wait(path, handles, what, state, log, timeout_s)
        yield partial(_take_again, path, what, handles)
        os.ftruncate(handles[-1], 0)
    finally:
        for handle in handles:
            os.close(handle)


@contextmanager
def hold_if_free(path: Path) -> Iterator[bool]:
    """Holds a lock during the block if no other process does; yields whether it holds it. Raises HostError."""
    handles: list[int] = []
    try:
        yield _take_signed(path, handles)
        for handle in handles:
            os.ftruncate(handle, 0)
    finally:
        for handle in handles:
            os.close(handle)


def read_holder(path: Path) -> Holder | None:
    """Returns the process that holds a lock now, or None. Takes no lock, except for the moment of one system call.

    A lock's file is empty unless the lock is held or its holder was killed. Only then the lock itself is tried.
    """
    holder = _read_signature(path)
    return holder if holder is not None and _is_held(path) else None


def lock_timeout_s() -> float:
    """Returns how long to wait for another process. Raises ConfigError if TANDEM_LOCK_TIMEOUT is not a number."""
    text = os.environ.get(TIMEOUT_VARIABLE) or str(DEFAULT_TIMEOUT_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"{TIMEOUT_VARIABLE}={text}: not a number of seconds", hint="0 does not wait at all")
    return seconds


def _wait(path: Path, handles: list[int], what: str, state: str, log: Log | None, timeout_s: float) -> None:
    start = time.monotonic()
    busy = f"{what} is {state} by"

    def is_taken() -> bool:
        if _take_signed(path, handles):
            return True
        if _is_ancestor(path):
            raise ConfigError(f"{busy} {_owner(path)}, which waits for this one", hint="no task can run itself")
        return False

    if is_taken():
        return
    if log is None:
        raise BusyError(f"{busy} {_owner(path)}", hint="wait for its end, or end it")
    log.step(f"waiting: {busy} {_owner(path)}")
    title = lambda: f"waiting for {_owner(path)}"  # noqa: E731
    if not wait_until(is_taken, timeout_s=timeout_s, interval_s=POLL_INTERVAL_S, log=log, title=title):
        raise BusyError(
            f"{what} is still {state} by {_owner(path)} after {time.monotonic() - start:.0f} s",
            hint=f"wait for it, end it, or set {TIMEOUT_VARIABLE} to more seconds",
        )


def _take_signed(path: Path, handles: list[int]) -> bool:
    """Takes the lock if it is free, and writes the process and the time into its file."""
    try:
        handles.append(take_lock(path, wait=False))
    except BlockingIOError:
        return False
    os.ftruncate(handles[-1], 0)
    os.pwrite(handles[-1], f"{os.getpid()} {time.time():.0f}\n".encode(), 0)
    return True


def _take_again(path: Path, what: str, handles: list[int]) -> None:
    if not holds_lock(handles[-1], path) and not _take_signed(path, handles):
        raise BusyError(
            f"{what} is run by {_owner(path)} as well: {path.name} was removed while this run held it",
            hint="wait for its end, and run it again",
        )


def _is_ancestor(path: Path) -> bool:
    """Returns whether the holder is a process that this one descends from."""
    holder, pid = _read_signature(path), os.getpid()
    if holder is None or holder.pid == pid:
        return False
    try:
        while pid > 1 and pid != holder.pid:
            # proc_pid_stat(5): the parent is the second word after the name, which may hold anything.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return False
    return pid == holder.pid


def _owner(path: Path) -> str:
    wait_until(lambda: _read_signature(path) is not None, timeout_s=SIGNING_S, interval_s=0.01, tidying=True)
    return str(_read_signature(path) or "another process")


def _read_signature(path: Path) -> Holder | None:
    try:
        pid, since = path.read_text().split()
        return Holder(pid=int(pid), since=float(since))
    except (OSError, ValueError):
        return None


def _is_held(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
