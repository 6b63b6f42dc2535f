"""gc and the images of a real engine."""

import io
import json
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import engine
from pipeline.commands.old_images import PREFIX, old_images
from pipeline.graph.garbage import Kept
from tests.docker.world_project import World, served, tidy


def image(*tags: str, text: str) -> str:
    """Load an image of one small file; returns its digest."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        member = tarfile.TarInfo("run")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text.encode()))
    client = engine.client()
    repository, _, tag = tags[0].partition(":")
    client.api.import_image_from_data(layer.getvalue(), repository=repository, tag=tag)
    for other in tags[1:]:
        client.images.get(tags[0]).tag(*other.split(":"))
    return str(engine.image("local", tags[0])["Id"])


@pytest.fixture
def name() -> Iterator[str]:
    """A repository of ours that nobody else uses; emptied afterwards."""
    made = f"{PREFIX}gc-test-{uuid.uuid4().hex[:8]}"
    yield made
    client = engine.client()
    for container in client.containers.list(all=True, filters={"label": f"{engine.LABEL}.test={made}"}):
        container.remove(force=True)
    for found in client.images.list(made):
        for tag in found.tags:
            client.images.remove(tag, force=True)


def kept(*, goes: Sequence[str] = (), stays: Sequence[str] = ()) -> Kept:
    """What records mention, by digest: those that go, and those that stay."""
    staying = frozenset(digest.removeprefix("sha256:") for digest in stays)
    going = frozenset(digest.removeprefix("sha256:") for digest in goes)
    return Kept(paths=frozenset(), hashes=staying, ours=staying | going)


def ours(name: str, kept: Kept) -> dict[str, Any]:
    """The items of this test by name; the engine may hold others."""
    return {item.name: item for item in old_images(kept) if name in item.name}


def test_an_image_that_only_records_that_go_mention_goes_and_one_that_stays_is_left(name: str) -> None:
    old, new = image(f"{name}:old", text="old"), image(f"{name}:new", text="new")
    assert old != new
    found = ours(name, kept(goes=[old, new], stays=[new]))
    assert list(found) == [f"{name}:old"]
    assert found[f"{name}:old"].bytes > 0
    found[f"{name}:old"].remove()
    assert engine.image("local", f"{name}:old") is None
    assert engine.image("local", new) is not None


def test_an_image_that_no_record_of_this_checkout_mentions_is_another_s(name: str) -> None:
    image(f"{name}:theirs", text="theirs")
    mine = image(f"{name}:mine", text="mine")
    assert list(ours(name, kept(goes=[mine]))) == [f"{name}:mine"]
    assert ours(name, kept()) == {}


def test_an_image_that_a_container_uses_stays_even_if_the_container_is_stopped(name: str) -> None:
    used = image(f"{name}:used", text="used")
    engine.client().containers.create(f"{name}:used", ["/run"], labels={f"{engine.LABEL}.test": name})
    assert ours(name, kept(goes=[used])) == {}


def test_a_tag_that_was_given_to_another_image_meanwhile_stays(name: str) -> None:
    item = ours(name, kept(goes=[image(f"{name}:tag", text="first")]))[f"{name}:tag"]
    newer = image(f"{name}:tag", text="second")
    item.remove()
    assert engine.image("local", f"{name}:tag")["Id"] == newer


def test_only_our_tags_are_taken_from_an_image_that_has_others(name: str) -> None:
    other = name.removeprefix(PREFIX) + ":theirs"
    made = image(f"{name}:ours", other, text="shared")
    try:
        ours(name, kept(goes=[made]))[f"{name}:ours"].remove()
        assert engine.image("local", f"{name}:ours") is None
        assert engine.image("local", other) is not None
    finally:
        engine.client().images.remove(other, force=True)


def test_an_image_without_a_tag_of_ours_is_never_removed(name: str) -> None:
    other = name.removeprefix(PREFIX) + ":theirs"
    made = image(other, text="theirs")
    try:
        assert other not in json.dumps([item.name for item in old_images(kept(goes=[made]))])
    finally:
        engine.client().images.remove(other, force=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "mine", f"gc-test-{uuid.uuid4().hex[:8]}", "127.0.0.1:1", "")
    yield made
    tidy(made.name)


def test_gc_of_one_checkout_leaves_the_images_of_another_alone(world: World) -> None:
    other = world.clone("theirs")
    other.write("in.txt", "of the other checkout")
    other.ran("build")
    digests = []
    for text in ("first", "second", "third"):
        world.write("in.txt", text)
        world.ran("build")
        digests.append(world.digest)
    assert world.doit("gc", "--yes", "--keep", "1").code == 0
    assert [engine.image("local", digest) is not None for digest in digests] == [False, False, True]
    assert engine.image("local", other.digest) is not None
    assert other.ran("build") == []
    assert "nothing to remove" in other.doit("gc", "--yes").out


def test_gc_frees_an_image_that_was_pushed_and_pulled_by_digest(world: World, tmp_path: Path) -> None:
    with served(tmp_path / "registry") as (world.registry, _):
        world.env["TOY_REGISTRY"] = world.registry
        world.ran("push")
        world.prune()
        assert world.ran("push") == ["restore build"]
        first = world.digest
        assert any(name.startswith("127.") for name in engine.image("local", first)["RepoDigests"])
        world.write("in.txt", "newer")
        world.ran("push")
        assert world.doit("gc", "--yes", "--keep", "1").code == 0
        assert engine.image("local", first) is None


def test_gc_removes_the_image_of_a_task_that_is_no_more(world: World) -> None:
    world.ran("build")
    (world.root / "artifacts/records/build-x").rename(world.root / "artifacts/records/build-y")
    assert world.doit("gc", "--yes").code == 0
    assert engine.image("local", world.digest) is None
