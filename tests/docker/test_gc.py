"""gc and the images of a real engine."""

import io
import json
import tarfile
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline import engine
from pipeline.commands.old_images import PREFIX, old_images
from pipeline.graph.garbage import Kept

NONE = Kept(paths=frozenset(), hashes=frozenset())


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


def ours(name: str, kept: Kept) -> dict[str, Any]:
    """The items of this test by name; the engine may hold others."""
    return {item.name: item for item in old_images(kept) if name in item.name}


def test_an_image_that_no_kept_record_mentions_goes_and_one_that_is_mentioned_stays(name: str) -> None:
    old, new = image(f"{name}:old", text="old"), image(f"{name}:new", text="new")
    assert old != new
    kept = Kept(paths=frozenset(), hashes=frozenset({new.removeprefix("sha256:")}))
    found = ours(name, kept)
    assert list(found) == [f"{name}:old"]
    assert found[f"{name}:old"].bytes > 0
    found[f"{name}:old"].remove()
    assert engine.image("local", f"{name}:old") is None
    assert engine.image("local", new) is not None


def test_an_image_that_a_container_uses_stays_even_if_the_container_is_stopped(name: str) -> None:
    image(f"{name}:used", text="used")
    engine.client().containers.create(f"{name}:used", ["/run"], labels={f"{engine.LABEL}.test": name})
    assert ours(name, NONE) == {}


def test_a_tag_that_was_given_to_another_image_meanwhile_stays(name: str) -> None:
    image(f"{name}:tag", text="first")
    item = ours(name, NONE)[f"{name}:tag"]
    newer = image(f"{name}:tag", text="second")
    item.remove()
    assert engine.image("local", f"{name}:tag")["Id"] == newer


def test_only_our_tags_are_taken_from_an_image_that_has_others(name: str) -> None:
    other = name.removeprefix(PREFIX) + ":theirs"
    image(f"{name}:ours", other, text="shared")
    try:
        ours(name, NONE)[f"{name}:ours"].remove()
        assert engine.image("local", f"{name}:ours") is None
        assert engine.image("local", other) is not None
    finally:
        engine.client().images.remove(other, force=True)


def test_images_of_others_are_not_even_looked_at(name: str) -> None:
    other = name.removeprefix(PREFIX) + ":theirs"
    image(other, text="theirs")
    try:
        assert other not in json.dumps([item.name for item in old_images(NONE)])
    finally:
        engine.client().images.remove(other, force=True)
