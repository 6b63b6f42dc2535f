"""Only one holds a lock, its file names the holder, and a lock is that of the file at its path."""

import os
import threading
import time
from pathlib import Path

import pytest

from pipeline.core.errors import BusyError
from pipeline.core.locks import (
    hold_if_free,
    hold_lock,
    holds_lock,
    locked,
    locked_folder,
    read_holder,
    take_lock,
)
from pipeline.core.log import NullLog


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


def test_a_waiter_on_a_removed_file_gets_the_lock_of_the_new_file(tmp_path: Path) -> None:
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
                os.sched_yield()  # without a lock, another thread gets in now
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert not list(tmp_path.iterdir())


def test_the_holder_of_a_lock_is_known_while_it_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_lock(path, what="the lab", log=NullLog()):
        holder = read_holder(path)
        assert holder is not None
        assert holder.pid == os.getpid()
        with hold_if_free(path) as held:
            assert not held
    assert read_holder(path) is None
    with hold_if_free(path) as held:
        assert held
        assert read_holder(path) is not None


def test_without_a_log_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path / "lock", what="the lab", log=NullLog(), state="in use"),
        pytest.raises(BusyError, match=f"^the lab is in use by process {os.getpid()}, since "),
        hold_lock(tmp_path / "lock", what="the lab", log=None, state="in use"),
    ):
        pass


def test_a_signature_of_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1 1700000000\n")
    assert read_holder(tmp_path / "lock") is None


def test_a_folder_can_be_locked_without_a_file_in_it(tmp_path: Path) -> None:
    ended: list[str] = []

    def work() -> None:
        with locked_folder(tmp_path):
            ended.append("waiter")

    with locked_folder(tmp_path):
        waiter = threading.Thread(target=work)
        waiter.start()
        waiter.join(0.2)
        ended.append("holder")
    waiter.join(20)
    assert ended == ["holder", "waiter"]
    assert not list(tmp_path.iterdir())
