"""The stat cache: quick, and never wrong about a file that changed."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.graph.stat_cache import LARGE_BYTES, StatCache
from pipeline.graph.task import Claim
from pipeline.graph.world import World


@pytest.fixture
def cache(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "cache" / "stats.json")


def aged(path: Path, text: str) -> Path:
    """A file whose last change lies far enough back for its hash to be kept."""
    path.write_text(text)
    time.sleep(0.03)
    return path


def test_an_unchanged_file_is_read_once_in_this_run_and_the_next(tmp_path: Path, cache: StatCache) -> None:
    file = aged(tmp_path / "a", "text")
    first = cache.sha256(file)
    assert cache.sha256(file) == first
    assert cache.hashed_bytes == 4
    cache.save()
    again = StatCache(tmp_path / "cache" / "stats.json")
    assert again.sha256(file) == first
    assert again.hashed_bytes == 0


def test_a_touched_large_file_is_read_once(tmp_path: Path, cache: StatCache) -> None:
    file = tmp_path / "large"
    with file.open("wb") as out:
        out.truncate(LARGE_BYTES)
    cache.sha256(file)
    assert cache.hashed_bytes == LARGE_BYTES
    os.utime(file)
    cache.sha256(file)
    cache.sha256(file)
    assert cache.hashed_bytes == 2 * LARGE_BYTES


def test_same_size_and_mtime_with_other_content_is_noticed_at_once(tmp_path: Path, cache: StatCache) -> None:
    file = tmp_path / "a"
    seen = set()
    for i in range(200):
        file.write_text(f"{i:03}")
        os.utime(file, (0, 0))
        seen.add(cache.sha256(file))
    assert len(seen) == 200


def test_a_file_put_in_anothers_place_is_noticed(tmp_path: Path, cache: StatCache) -> None:
    one, two = aged(tmp_path / "1", "one"), aged(tmp_path / "2", "two")
    os.utime(one, (0, 0))
    os.utime(two, (0, 0))
    before = cache.sha256(one)
    two.replace(one)
    assert cache.sha256(one) != before


@pytest.mark.parametrize("now", [lambda: 0, lambda: time.time_ns() - 3_600_000_000_000])
def test_with_the_clock_set_back_nothing_is_kept_that_could_be_wrong(tmp_path: Path, now: Callable[[], int]) -> None:
    cache = StatCache(tmp_path / "stats.json", now=now)
    file = aged(tmp_path / "a", "text")
    assert cache.sha256(file) == cache.sha256(file)
    assert cache.hashed_bytes == 8


def test_two_runs_keep_what_each_other_learned(tmp_path: Path) -> None:
    store = tmp_path / "stats.json"
    one, two = StatCache(store), StatCache(store)
    a, b = aged(tmp_path / "a", "a"), aged(tmp_path / "b", "b")
    one.sha256(a)
    two.sha256(b)
    one.save()
    two.save()
    third = StatCache(store)
    third.sha256(a)
    third.sha256(b)
    assert third.hashed_bytes == 0


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = StatCache(tmp_path / "file" / "stats.json")
    cache.sha256(aged(tmp_path / "a", "a"))
    cache.save()


def test_a_claimed_file_is_missing_changed_or_there(tmp_path: Path, cache: StatCache) -> None:
    world = World(tmp_path, cache)
    file = aged(tmp_path / "a", "a")
    claim = Claim(kind="file", what={"path": "a", "sha256": cache.sha256(file)})
    assert world.check(claim) is None
    file.write_text("b")
    assert world.check(claim) == "a has other content"
    file.unlink()
    assert world.check(claim) == "a is missing"
    file.mkdir()
    assert "cannot be read" in (world.check(claim) or "")


def test_claims_on_other_machines_are_asked_at_the_same_time(tmp_path: Path, cache: StatCache) -> None:
    world = World(tmp_path, cache)
    meeting = threading.Barrier(3, timeout=10)

    def ask(claim: Claim) -> str | None:
        meeting.wait()
        return "down" if claim.what["node"] == 2 else None

    world.register("node", ask)
    claims = [Claim(kind="node", what={"node": i}) for i in (1, 2, 3)]
    assert world.broken([Claim(kind="file", what={"path": "gone", "sha256": ""}), *claims]) == [
        (Claim(kind="file", what={"path": "gone", "sha256": ""}), "gone is missing"),
        (claims[1], "down"),
    ]


def test_a_claim_of_an_unknown_kind_is_refused(tmp_path: Path, cache: StatCache) -> None:
    with pytest.raises(ConfigError, match="'moon': no such kind"):
        World(tmp_path, cache).broken([Claim(kind="moon", what={})])
