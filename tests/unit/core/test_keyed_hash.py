"""Hashes of secrets tell of a change, and are of use to nobody without the user's own key."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pipeline.core import keyed_hash as module
from pipeline.core.keyed_hash import KEY_BYTES, keyed_hash


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tandem" / "hash-key"


def restart() -> None:
    """Forget what this process knows, as the next run of a command does."""
    module._key.cache_clear()  # a new process has no other way to be played


def test_a_hash_follows_from_secret_name_and_key(key: Path) -> None:
    first = keyed_hash("A", "s3cr3t")
    restart()
    assert keyed_hash("A", "s3cr3t") == first
    assert len({first, keyed_hash("A", "other"), keyed_hash("B", "s3cr3t")}) == 3
    key.unlink()
    restart()
    assert keyed_hash("A", "s3cr3t") != first


def test_only_its_owner_can_read_the_key(key: Path) -> None:
    keyed_hash("A", "s3cr3t")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert list(key.parent.iterdir()) == [key]


def test_a_damaged_key_is_replaced(key: Path) -> None:
    key.parent.mkdir(parents=True)
    key.write_bytes(b"short")
    keyed_hash("A", "s3cr3t")
    assert len(key.read_bytes()) == KEY_BYTES


def test_without_a_place_for_the_key_every_secret_counts_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    first = keyed_hash("A", "s3cr3t")
    assert keyed_hash("A", "s3cr3t") == first
    restart()
    assert keyed_hash("A", "s3cr3t") != first


def test_processes_that_start_at_once_have_one_key(key: Path) -> None:
    assert_one_key(key)


def test_a_filesystem_without_hard_links_keeps_the_key_too(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    first = keyed_hash("A", "s3cr3t")
    restart()
    assert keyed_hash("A", "s3cr3t") == first
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert_one_key(key)


def assert_one_key(key: Path) -> None:
    """Let eight threads play processes that find no key at the same time."""
    barrier = Barrier(8)

    def start(_: int) -> bytes:
        barrier.wait()
        return module._key.__wrapped__(key)  # past the cache, which processes do not share

    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            key.unlink(missing_ok=True)
            assert len(set(pool.map(start, range(8)))) == 1
            assert list(key.parent.iterdir()) == [key]
