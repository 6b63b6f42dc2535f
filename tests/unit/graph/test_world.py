"""Claims that are asked about ahead of the look at them."""

import threading
from pathlib import Path

import pytest

from pipeline.graph import world as worlds
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.task import Claim
from pipeline.graph.world import World

MOON = Claim(kind="moon", what={"phase": "full"})


class Sky:
    """A world with one kind of claim; counts how often it is asked, and holds as long as it is told to."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, StatCache(folder / "stats.json"))
        self.world.register("moon", self._look)
        self.asked = 0
        self.why: str | None = None

    def _look(self, _: Claim) -> str | None:
        self.asked += 1
        return self.why


@pytest.fixture
def sky(tmp_path: Path) -> Sky:
    return Sky(tmp_path)


def test_what_was_seen_to_hold_ahead_is_not_asked_again(sky: Sky) -> None:
    sky.world.prefetch([MOON, MOON])
    assert sky.world.broken([MOON]) == []
    assert sky.world.broken([MOON]) == []
    assert sky.asked == 1


def test_what_did_not_hold_ahead_is_not_waited_for_again(sky: Sky) -> None:
    sky.why = "not up yet"
    sky.world.prefetch([MOON])
    assert sky.world.broken([MOON]) == [(MOON, "not up yet")]
    assert sky.asked == 1


def test_a_check_that_breaks_ahead_breaks_when_it_is_looked_at(sky: Sky) -> None:
    sky.world.register("mars", lambda claim: str(claim.what["none"]))
    mars = Claim(kind="mars", what={})
    sky.world.prefetch([mars, Claim(kind="nobody knows", what={})])
    with pytest.raises(KeyError):
        sky.world.broken([mars])


def test_what_was_asked_before_something_was_done_is_asked_again(sky: Sky) -> None:
    sky.world.prefetch([MOON])
    sky.world.discard_prefetched()
    sky.why = "the task took it down"
    assert sky.world.broken([MOON]) == [(MOON, "the task took it down")]


def test_an_answer_that_is_not_fresh_is_asked_for_again(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> None:
    sky.world.prefetch([MOON])
    assert sky.world.broken([MOON]) == []
    monkeypatch.setattr(worlds, "FRESH_S", -1.0)
    sky.why = "it set"
    assert sky.world.broken([MOON]) == [(MOON, "it set")]


def test_claims_of_several_tasks_are_asked_at_the_same_time(sky: Sky) -> None:
    together = threading.Barrier(2, timeout=10)
    sky.world.register("pair", lambda _: "late" if together.wait() > 1 else None)
    pair = [Claim(kind="pair", what={"of": of}) for of in ("first task", "second task")]
    for claim in pair:
        sky.world.prefetch([claim])
    assert [sky.world.broken([claim]) for claim in pair] == [[], []]
    assert not together.broken
