"""What the world loses is noticed, and exactly the tasks that are needed run: with a real engine and registry."""

import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from pipeline.host import engine
from pipeline.host.engine import client
from pipeline.registry import api
from tests import stored
from tests.docker.world_project import World, served, start, tidy

DEPLOYED = ["run lock", "run base", "run build", "run smoke", "run push", "run deploy"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with served(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, place: tuple[str, str]) -> Iterator[World]:
    """A project that is deployed."""
    made = World(tmp_path / "toy", f"world-test-{uuid.uuid4().hex[:8]}", *place)
    try:
        assert made.ran("deploy") == DEPLOYED
        yield made
    finally:
        tidy(made.name)


def blobs(world: World) -> list[str]:
    """The digests of the image's layers in the registry."""
    found = api.get_manifest(world.registry, f"tandem/{world.name}", world.digest)
    assert found is not None
    return [layer["digest"] for layer in found.value["layers"]]


def delete(world: World, what: str) -> None:
    """Delete something of the image's repository from the registry."""
    answer = requests.delete(f"http://{world.registry}/v2/tandem/{world.name}/{what}", timeout=10)
    assert answer.status_code == 202


def test_with_nothing_lost_nothing_runs(world: World) -> None:
    assert world.ran("deploy") == []


def test_a_pruned_image_that_was_pushed_is_pulled_and_nothing_else_runs(world: World) -> None:
    world.prune()
    assert world.ran("deploy") == ["restore build"]
    assert world.outcomes()["build:x"] == "restored"
    assert engine.find_image("local", world.digest) is not None
    assert world.ran("deploy") == []


def test_a_pruned_image_that_is_nowhere_is_built_again_to_the_same_digest(world: World) -> None:
    digest = world.digest
    world.prune()
    delete(world, f"manifests/{digest}")
    assert world.ran("deploy") == ["restore build", "run build", "run push"]
    assert world.digest == digest
    assert world.ran("deploy") == []


def test_what_the_build_reads_is_made_again_only_when_it_builds(world: World) -> None:
    for path in (world.root / "artifacts/base").iterdir():
        path.unlink()
    assert world.ran("deploy") == []
    assert world.outcomes()["base:x"] == "later"
    world.prune()
    assert world.ran("deploy") == ["restore build"]
    world.prune()
    delete(world, f"manifests/{world.digest}")
    assert world.ran("deploy") == ["restore build", "run base", "run build", "run push"]


def test_an_emptied_registry_is_pushed_to_and_nothing_is_built(world: World, tmp_path: Path) -> None:
    stored.remove_registry(world.registry, volume=True)
    start(world.registry, tmp_path / "again")
    assert world.ran("deploy") == ["run push"]
    assert api.missing_parts(world.registry, f"tandem/{world.name}", world.digest) == ()
    assert world.ran("deploy") == []


def test_a_manifest_that_the_registry_lost_is_pushed_again(world: World) -> None:
    delete(world, f"manifests/{world.digest}")
    assert world.ran("deploy") == ["run push"]


def test_a_blob_that_the_registry_lost_behind_its_manifest_is_pushed_again(world: World) -> None:
    (layer,) = blobs(world)
    delete(world, f"blobs/{layer}")
    assert api.find_digest(world.registry, f"tandem/{world.name}", world.digest) == world.digest
    told = world.doit("why", "push").out
    assert "which belongs to what it has as sha256:" in told
    assert world.ran("deploy") == ["run push"]
    content = api.get_blob(world.registry, f"tandem/{world.name}", layer)
    assert content is not None
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == layer


def test_an_image_that_cannot_be_pulled_whole_is_built_again(world: World) -> None:
    (layer,) = blobs(world)
    world.prune()
    delete(world, f"blobs/{layer}")
    assert world.ran("deploy") == ["restore build", "run build", "run push"]
    assert world.ran("deploy") == []


def test_a_tag_that_was_moved_is_put_right(world: World) -> None:
    moved = api.get_manifest(world.registry, f"tandem/{world.name}", "1")
    assert moved is not None
    other = json.dumps({**moved.value, "annotations": {"somebody": "else"}})
    put = requests.put(
        f"http://{world.registry}/v2/tandem/{world.name}/manifests/1",
        data=other,
        headers={"Content-Type": moved.value["mediaType"]},
        timeout=10,
    )
    assert put.status_code == 201
    assert world.ran("deploy") == ["run push"]
    assert api.find_digest(world.registry, f"tandem/{world.name}", "1") == world.digest


@pytest.mark.parametrize("deed", ["kill", "remove"])
def test_a_container_that_is_gone_or_dead_is_started_again(world: World, deed: str) -> None:
    container = client().containers.get(world.name)
    if deed == "kill":
        container.kill()
        container.wait(timeout=20)
    else:
        container.remove(force=True, v=True)
    assert world.ran("deploy") == ["run deploy"]
    assert world.ran("deploy") == []


def test_a_container_of_something_else_under_the_same_name_is_replaced(world: World) -> None:
    client().containers.get(world.name).remove(force=True, v=True)
    runner = world.env["TOY_RUNNER"]
    client().containers.run(runner, name=world.name, detach=True, labels={"tandem.toy": "other"}, network_mode="none")
    assert world.ran("deploy") == ["run deploy"]
    assert client().containers.get(world.name).labels["tandem.toy"] == world.digest


def test_another_image_is_deployed_and_going_back_builds_nothing(world: World) -> None:
    text = (world.root / "in.txt").read_text()
    first = world.digest
    world.write("in.txt", "something else")
    assert world.ran("deploy") == DEPLOYED
    assert world.digest != first
    world.write("in.txt", text)
    assert world.ran("deploy") == ["run push", "run deploy"]
    assert world.digest == first


def test_a_registry_that_is_down_fails_the_push_and_nothing_before_it(world: World, tmp_path: Path) -> None:
    stored.remove_registry(world.registry)
    try:
        world.happened()
        done = world.doit("-c", "deploy")
        assert done.code == 1
        assert world.happened() == ["run push"]
        assert world.outcomes()["deploy:x"] == "blocked"
        assert "no registry answers at" in done.out
    finally:
        start(world.registry, tmp_path / "again")
    assert world.ran("deploy") == []
