"""One run at a time for each task: a file lock that says who holds it."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from pipeline.core import flock
from pipeline.core.errors import BusyError, Cancelled, ConfigError
from pipeline.core.files import not_writable
from pipeline.core.log import Log, announce
from pipeline.core.procs import cancelled

TIMEOUT = "TANDEM_LOCK_TIMEOUT"
EVERY = 0.1


@contextmanager
def hold(path: Path, *, what: str, log: Log) -> Iterator[Callable[[], None]]:
    """Hold the lock at `path` while the block runs; wait for another run, and say for whom.

    What it yields makes sure of the lock before a result counts: if its file was removed, as by `rm -rf artifacts`,
    it is taken anew, and BusyError raised if another run was quicker. The kernel frees the lock when its holder ends,
    however it ends. Raises BusyError after TANDEM_LOCK_TIMEOUT seconds (an hour by default), ConfigError if that run
    has started this one, Cancelled, and HostError if the file cannot be written.
    """
    within = timeout()
    start = time.monotonic()
    held: list[int] = []
    said = False
    try:
        while not _taken(path, held):
            owner = _owner(path)
            if _is_above_us(path):
                raise ConfigError(f"{what} is run by {owner}, which waits for this one", hint="no task can run itself")
            if not said:
                announce(log, f"waiting: {what} is run by {owner}")
                said = True
            _wait(start, within, what, owner, log)
        yield partial(_still, path, what, held)
        os.ftruncate(held[-1], 0)
    finally:
        for handle in held:
            os.close(handle)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock for the moment that it takes to merge a file. Raises BlockingIOError if it must not wait for it."""
    handle = take(path, wait=wait)
    try:
        yield
    finally:
        os.close(handle)


def take(path: Path, *, wait: bool) -> int:
    """Lock a file below artifacts/, and return its descriptor; see flock.take(). Raises HostError as well."""
    try:
        return flock.take(path, wait=wait)
    except BlockingIOError:
        raise
    except OSError as error:
        raise not_writable(path, error) from error


def sign(handle: int) -> None:
    """Say in a lock's file who holds it: process and time."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()} {time.time():.0f}\n".encode(), 0)


def timeout() -> float:
    """Seconds to wait for another run. Raises ConfigError if TANDEM_LOCK_TIMEOUT is no number of seconds."""
    text = os.environ.get(TIMEOUT) or "3600"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"{TIMEOUT}={text}: not a number of seconds", hint="0 does not wait at all")
    return seconds


def _wait(start: float, within: float, what: str, owner: str, log: Log) -> None:
    passed = time.monotonic() - start
    if cancelled():
        raise Cancelled("interrupted")
    if passed >= within:
        raise BusyError(
            f"{what} is still run by {owner} after {passed:.0f} s",
            hint=f"wait for it, end it, or set {TIMEOUT} to more seconds",
        )
    log.progress(f"waiting for {owner}", passed, within, "s")
    time.sleep(EVERY)


def _taken(path: Path, held: list[int]) -> bool:
    try:
        held.append(take(path, wait=False))
    except BlockingIOError:
        return False
    sign(held[-1])
    return True


def _still(path: Path, what: str, held: list[int]) -> None:
    if not flock.holds(held[-1], path) and not _taken(path, held):
        raise BusyError(
            f"{what} is run by {_owner(path)} as well: {path.name} was removed while this run held it",
            hint="wait for its end, and run it again",
        )


def _is_above_us(path: Path) -> bool:
    """Whether the holder is a process that this one descends from."""
    try:
        holder, pid = int(path.read_text().split()[0]), os.getpid()
        while pid > 1 and pid != holder:
            # proc_pid_stat(5): the parent is the second word after the name, which may hold anything.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return False
    return pid == holder and pid != os.getpid()


def _owner(path: Path) -> str:
    try:
        pid, since = path.read_text().split()
        return f"process {pid}, since {datetime.fromtimestamp(float(since)).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OSError, ValueError):
        return "another process"
