"""A lock is that of the file at its path, not of one that was removed."""

import os
import threading
import time
from pathlib import Path

import pytest

from pipeline.core.locks import holds_lock, locked, take_lock


def open_descriptors(path: Path) -> int:
    """How many descriptors of this process are of the file at `path`."""
    return sum(link.samefile(path) for link in Path("/proc/self/fd").iterdir() if link.exists())


def test_a_lock_is_held_by_one_and_freed_by_closing_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    handle = take_lock(path, wait=False)
    with pytest.raises(BlockingIOError):
        take_lock(path, wait=False)
    os.close(handle)
    os.close(take_lock(path, wait=False))


def test_who_waited_for_a_file_that_was_removed_holds_the_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = take_lock(path, wait=True)
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(take_lock(path, wait=True)))
    waiter.start()
    while open_descriptors(path) < 2:
        time.sleep(0.01)
    path.unlink()
    second = take_lock(path, wait=False)
    assert not holds_lock(first, path)
    os.close(first)
    waiter.join(0.3)
    assert not taken, "another one holds the lock that everybody sees"
    os.close(second)
    waiter.join(20)
    assert holds_lock(taken[0], path)
    with pytest.raises(BlockingIOError):
        take_lock(path, wait=False)
    os.close(taken[0])


def test_a_lock_whose_file_is_removed_lets_one_in_at_a_time_and_leaves_no_file(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(200):
            with locked(tmp_path / "lock", remove=True):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert not list(tmp_path.iterdir())
