"""gc and the images of a real engine."""

import io
import json
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.gc_elsewhere import find_old_elsewhere, remove_all
from pipeline.commands.gc_images import PREFIX, find_old_images
from pipeline.commands.gc_registry import find_old_manifests
from pipeline.graph.garbage import IMAGES, MANIFESTS, NODES, KeptReferences
from pipeline.host import engine
from pipeline.registry import api, local
from pipeline.registry import records as shared
from tests import stored
from tests.docker.test_shared_records import RECORDS
from tests.docker.world_project import World, served, tidy
from tests.ports import free_port


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
    return str(engine.find_image("local", tags[0])["Id"])


@pytest.fixture
def name() -> Iterator[str]:
    """A repository of ours that nobody else uses; emptied afterwards."""
    made = f"{PREFIX}gc-test-{uuid.uuid4().hex[:8]}"
    yield made
    client = engine.client()
    for container in stored.containers(client, f"{engine.LABEL}.test={made}"):
        container.remove(force=True, v=True)
    stored.remove(client, made)


def kept(*, goes: Sequence[str] = (), stays: Sequence[str] = ()) -> KeptReferences:
    """What records mention, by digest: those that go, and those that stay."""
    staying = frozenset(digest.removeprefix("sha256:") for digest in stays)
    going = frozenset(digest.removeprefix("sha256:") for digest in goes)
    return KeptReferences(paths=frozenset(), hashes=staying, ours=staying | going)


def ours(name: str, kept: KeptReferences) -> dict[str, Any]:
    """The items of this test by name; the engine may hold others."""
    return {item.name: item for item in find_old_images(kept) if name in item.name}


def test_an_image_that_only_records_that_go_mention_goes_and_one_that_stays_is_left(name: str) -> None:
    old, new = image(f"{name}:old", text="old"), image(f"{name}:new", text="new")
    assert old != new
    found = ours(name, kept(goes=[old, new], stays=[new]))
    assert list(found) == [f"{name}:old"]
    assert found[f"{name}:old"].bytes > 0
    found[f"{name}:old"].remove()
    assert engine.find_image("local", f"{name}:old") is None
    assert engine.find_image("local", new) is not None


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
    assert engine.find_image("local", f"{name}:tag")["Id"] == newer


def test_only_our_tags_are_taken_from_an_image_that_has_others(name: str) -> None:
    other = name.removeprefix(PREFIX) + ":theirs"
    made = image(f"{name}:ours", other, text="shared")
    try:
        ours(name, kept(goes=[made]))[f"{name}:ours"].remove()
        assert engine.find_image("local", f"{name}:ours") is None
        assert engine.find_image("local", other) is not None
    finally:
        engine.client().images.remove(other, force=True)


def test_an_image_without_a_tag_of_ours_is_never_removed(name: str) -> None:
    other = name.removeprefix(PREFIX) + ":theirs"
    made = image(other, text="theirs")
    try:
        assert other not in json.dumps([item.name for item in find_old_images(kept(goes=[made]))])
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
    assert [engine.find_image("local", digest) is not None for digest in digests] == [False, False, True]
    assert engine.find_image("local", other.digest) is not None
    assert other.ran("build") == []
    assert "nothing to remove" in other.doit("gc", "--yes").out


def test_gc_frees_an_image_that_was_pushed_and_pulled_by_digest(world: World, tmp_path: Path) -> None:
    with served(tmp_path) as (world.registry, _):
        world.env["TOY_REGISTRY"] = world.registry
        world.ran("push")
        world.prune()
        assert world.ran("push") == ["restore build"]
        first = world.digest
        assert any(name.startswith("127.") for name in engine.find_image("local", first)["RepoDigests"])
        world.write("in.txt", "newer")
        world.ran("push")
        assert world.doit("gc", "--yes", "--keep", "1").code == 0
        assert engine.find_image("local", first) is None


def test_gc_removes_the_image_of_a_task_that_is_no_more(world: World) -> None:
    world.ran("build")
    (world.root / "artifacts/records/build-x").rename(world.root / "artifacts/records/build-y")
    assert world.doit("gc", "--yes").code == 0
    assert engine.find_image("local", world.digest) is None


NODE = "unix:///var/run/docker.sock"
"""This machine's engine by another name: it stands for a node."""


def configure(world: World, address: str, node: str = NODE, records: str = "off") -> None:
    """Give a checkout the configuration that says where its registry and its node are."""
    cluster = {"image": world.name, "nodes": [{"name": "n", "endpoint": node, "address": "127.0.0.1"}]}
    config = {
        "default": "c",
        "registry": {"address": address, "serve": False, "records": records},
        "clusters": {"c": cluster},
    }
    image = {"base": {"debian": "trixie", "packages": ["bash"]}, "python": {"version": "3.13", "requirements": ["x"]}}
    world.write("pipeline.yaml", json.dumps(config))
    world.write(f"dockerfiles/{world.name}/image.yaml", json.dumps(image))
    world.write(f"dockerfiles/{world.name}/Dockerfile", "FROM scratch\n")


def answer(world: World, *words: str) -> Any:
    """What gc answers with --json, with one result of each task kept."""
    done = world.doit("gc", "--keep", "1", "--json", *words)
    assert done.code == 0, done.err
    return json.loads(done.out)


def pushed(world: World, *texts: str) -> list[str]:
    """Push an image of each text in turn; returns their digests."""
    digests = []
    for text in texts:
        world.write("in.txt", text)
        world.ran("push")
        digests.append(world.digest)
    return digests


def blobs(address: str) -> int:
    """The blobs in a registry of ours that carry data."""
    container = engine.client().containers.get(local.container_name(address))
    chunks, _ = container.get_archive("/var/lib/registry/docker/registry/v2/blobs")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        return sum(member.name.endswith("/data") for member in tar)


@pytest.fixture
def shop(world: World, tmp_path: Path) -> Iterator[World]:
    """A checkout with a registry and a node."""
    with served(tmp_path) as (world.registry, _):
        world.env["TOY_REGISTRY"] = world.registry
        configure(world, world.registry)
        yield world


def test_gc_frees_the_registry_of_what_no_kept_record_claims(shop: World) -> None:
    old, older, new = pushed(shop, "old", "older", "new")
    before, repository = blobs(shop.registry), f"tandem/{shop.name}"
    dry = answer(shop, "--dry-run")
    found = {item["name"]: item["bytes"] for item in dry["items"] if item["kind"] == MANIFESTS}
    assert set(found) == {f"{shop.registry}/{repository}@{digest}" for digest in (old, older)}
    # A layer of a tar's 10240 bytes, and the configuration.
    assert all(10240 < size < 11000 for size in found.values())
    assert api.existing_references(shop.registry, repository, [old, older, new]) == (old, older, new)
    done = shop.doit("gc", "--yes", "--keep", "1")
    assert (done.code, done.err) == (0, "")
    assert api.existing_references(shop.registry, repository, [old, older, new]) == (new,)
    assert api.missing_parts(shop.registry, repository, new) == ()
    assert before - blobs(shop.registry) == 2 * 3
    assert shop.ran("push") == []
    assert shop.doit("gc", "--yes", "--keep", "1").out == "nothing to remove\n"


def test_gc_leaves_what_another_checkout_pushed_in_the_registry(shop: World) -> None:
    other = shop.clone("theirs")
    theirs = pushed(other, "theirs")
    pushed(shop, "mine", "newer")
    assert shop.doit("gc", "--yes", "--keep", "1").code == 0
    assert api.existing_references(shop.registry, f"tandem/{shop.name}", theirs) == tuple(theirs)


def test_a_manifest_and_an_image_that_a_container_uses_stay_everywhere(shop: World) -> None:
    used, _ = pushed(shop, "used", "new")
    container = engine.client().containers.create(used, ["/run"], name=shop.name, platform="linux/arm64")
    items, notes = find_old_elsewhere(shop.root, kept(goes=[used]))
    assert ([item for item in items if shop.name in item.name], notes) == ([], [])
    container.remove(force=True, v=True)
    items, notes = find_old_elsewhere(shop.root, kept(goes=[used]))
    assert [item.kind for item in items if shop.name in item.name] == [NODES, MANIFESTS]


def test_gc_removes_images_from_a_node_and_says_so(shop: World) -> None:
    old, new = pushed(shop, "old", "new")
    items, notes = find_old_elsewhere(shop.root, kept(goes=[old, new], stays=[new]))
    (item,) = [item for item in items if item.kind == NODES]
    assert notes == []
    assert item.name.startswith(f"{NODE}: ")
    assert item.bytes > 10240
    assert remove_all([item], notes) == [item]
    assert engine.find_image("local", old) is None
    assert engine.find_image("local", new) is not None
    # What is gone already is as good as removed.
    assert remove_all([item], notes) == [item]


def test_gc_takes_back_the_shared_records_of_what_goes_if_it_may_write_them(shop: World) -> None:
    tags = []
    for text in ("old", "new"):
        shop.write("in.txt", text)
        shop.ran("build", records="push")
        tags += [shared.record_tag("build:x", path.stem) for path in shop.records("build:x")]
    old, new = tags[0], next(tag for tag in tags if tag != tags[0])
    assert api.existing_references(shop.registry, RECORDS, [old, new]) == (old, new)
    for records, left in (("pull", (old, new)), ("push", (new,))):
        configure(shop, shop.registry, records=records)
        names = [item["name"] for item in answer(shop, "--dry-run")["items"] if item["kind"] == MANIFESTS]
        assert (f"{shop.registry}/{RECORDS}:{old}" in names) == (records == "push")
        if records == "push":
            answer(shop, "--yes")
        assert api.existing_references(shop.registry, RECORDS, [old, new]) == left


def test_gc_goes_on_without_registry_and_nodes_and_says_each_once(world: World) -> None:
    silent = f"127.0.0.1:{free_port()}"
    configure(world, silent)
    world.ran("build")
    first = world.digest
    world.write("in.txt", "newer")
    world.ran("build")
    done = world.doit("gc", "--dry-run", "--keep", "1")
    assert done.code == 0
    assert done.err.count("note: ") == 1
    assert done.err.startswith(f"note: the registry is left alone: no registry answers at {silent}")
    configure(world, silent, node=f"tcp://127.0.0.1:{free_port()}")
    said = answer(world, "--yes")
    assert IMAGES in {item["kind"] for item in said["items"] if item["removed"]}
    assert engine.find_image("local", first) is None
    node, left = said["notes"]
    assert node.startswith("tcp://127.0.0.1:")
    assert "no Docker engine answers" in node
    assert left.startswith("the registry is left alone")


def test_a_registry_that_forbids_deletion_is_one_note(
    shop: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "CONFIG", local.CONFIG.replace("true", "false"))
    (strict := tmp_path / "strict").mkdir()
    with served(strict) as (address, image):
        try:
            shop.env["TOY_REGISTRY"] = address
            digests = pushed(shop, "one", "two")
            items = list(find_old_manifests(kept(goes=digests), address, [f"tandem/{shop.name}"]))
            notes: list[str] = []
            assert len(items) == 2
            assert remove_all(items, notes) == []
            assert notes == [f"the registry {address} does not delete manifests"]
        finally:
            stored.remove_registry(address, volume=True)
            engine.client().images.remove(image, force=True)
