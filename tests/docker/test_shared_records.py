"""Results shared through a real registry: a second checkout takes what the first one made, and believes little."""

import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.registry import api, records
from pipeline.registry.retry import TRIES
from pipeline.registry.transport import RegistryUnreachable
from tests.docker.world_project import World, served, tidy
from tests.ports import free_port

ALL = ["run lock", "run base", "run build", "run smoke", "run push"]
RECORDS = "tandem/records"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with served(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def first(tmp_path: Path, place: tuple[str, str]) -> Iterator[World]:
    """A checkout that has run nothing."""
    name = f"share-test-{uuid.uuid4().hex[:8]}"
    yield World(tmp_path / "first", name, *place)
    tidy(name)


def tag(world: World, task: str) -> str:
    """The tag of the record of a task's only result."""
    (record,) = world.records(task)
    return records.record_tag(task, record.stem)


def lines(world: World, task: str) -> str:
    """The last log of a task."""
    return (world.root / "artifacts/logs" / task.replace(":", "-") / "latest").read_text()


def test_a_clone_takes_what_another_made_and_smokes_it_itself(first: World) -> None:
    assert first.ran("push", records="push") == ALL
    first.prune()
    second = first.clone("second")
    assert second.ran("push", records="pull") == ["run lock", "restore build", "run smoke", "run push"]
    assert second.outcomes() == {
        "lock:x": "ran", "base:x": "later", "build:x": "restored", "smoke:x": "ran", "push:x": "ran",
    }  # fmt: skip
    assert second.digest == first.digest
    assert not (second.root / "artifacts/base").exists()
    assert "another checkout has a result of the same inputs" in lines(second, "base:x")
    for task in ("base:x", "build:x"):
        assert [path.read_bytes() for path in second.records(task)] == [
            path.read_bytes() for path in first.records(task)
        ]
    assert second.ran("push", records="pull") == []


def test_what_only_the_build_reads_is_made_in_the_clone_once_it_builds(first: World) -> None:
    first.ran("push", records="push")
    second = first.clone("second")
    second.ran("build", records="pull")
    second.write("dodo.py", (second.root / "dodo.py").read_text().replace('"build:x", doc="", inputs=Inputs()',
        '"build:x", doc="", inputs=Inputs(params={"more": 1})'))  # fmt: skip
    assert second.ran("build", records="pull") == ["run base", "run build"]
    assert second.digest == first.digest


def test_an_image_that_nobody_pushed_is_built_although_its_record_is_shared(first: World) -> None:
    first.ran("build", records="push")
    first.prune()
    second = first.clone("second")
    assert second.ran("build", records="pull") == ["run lock", "restore build", "run base", "run build"]
    assert "cannot be restored, so it is made again" in lines(second, "build:x")


def test_other_inputs_are_another_result(first: World) -> None:
    first.ran("build", records="push")
    second = first.clone("second")
    second.write("in.txt", "something else")
    assert second.ran("build", records="pull") == ["run lock", "run base", "run build"]


def test_a_verdict_is_not_shared(first: World) -> None:
    first.ran("push", records="push")
    (record,) = first.records("smoke:x")
    assert api.find_digest(first.registry, RECORDS, records.record_tag("smoke:x", record.stem)) is None
    assert api.find_digest(first.registry, RECORDS, tag(first, "build:x")) is not None


def test_who_only_pulls_writes_nothing(first: World) -> None:
    first.ran("build", records="pull")
    for task in ("base:x", "build:x"):
        assert api.find_digest(first.registry, RECORDS, tag(first, task)) is None


def test_off_neither_reads_nor_writes(first: World) -> None:
    first.ran("build")
    assert api.find_digest(first.registry, RECORDS, tag(first, "build:x")) is None
    first.ran("build", "-a", records="push")
    second = first.clone("second")
    assert second.ran("build") == ["run lock", "run base", "run build"]


def test_looking_asks_nobody_and_writes_nothing(first: World) -> None:
    first.ran("build", records="push")
    second = first.clone("second")
    done = second.doit("plan", "build", "--json", env={"TOY_RECORDS": "pull"})
    assert [entry["action"] for entry in json.loads(done.out)["tasks"]] == ["run", "run", "run"]
    assert second.records("base:x") == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value["inputs"].update({"upstream:base:x": "0"}), "inputs do not come to its fingerprint"),
        (lambda value: value.update(task="base:x"), "it is about base:x"),
        (lambda value: value.update(schema=99), "schema 99, not 1"),
        (lambda value: value.update(fingerprint="0" * 64), "it is about build:x 000"),
        (lambda value: value.update(outputs={"image": "x"}), "KeyError('digest')"),
        (lambda value: value.update(outputs=[]), "inputs and outputs are not mappings"),
        (lambda value: value.clear(), "KeyError('schema')"),
    ],
)  # fmt: skip
def test_a_record_that_was_tampered_with_is_named_and_refused(first: World, change: object, said: str) -> None:
    first.ran("push", records="push")
    value = json.loads(first.records("build:x")[0].read_text())
    assert callable(change)
    change(value)
    records.write_record(first.registry, RECORDS, tag(first, "build:x"), json.dumps(value).encode(), NullLog())
    second = first.clone("second")
    assert second.ran("build", records="pull") == ["run lock", "run base", "run build"]
    told = lines(second, "build:x")
    assert "a shared result is not used: it is not a record of build:x" in told
    assert said in told


def test_something_else_under_the_tag_is_named_and_refused(first: World) -> None:
    first.ran("push", records="push")
    image = api.get_manifest(first.registry, f"tandem/{first.name}", "1")
    assert image is not None
    foreign = f"http://{first.registry}/v2/tandem/{first.name}/manifests/{tag(first, 'build:x')}"
    kind = "application/vnd.oci.image.manifest.v1+json"
    put = requests.put(foreign, data=json.dumps(image.value), headers={"Content-Type": kind}, timeout=10)
    assert put.status_code == 201
    with pytest.raises(TandemError, match="not a record"):
        records.read_record(first.registry, f"tandem/{first.name}", tag(first, "build:x"))


def test_a_registry_that_is_down_changes_nothing_and_is_said_once(first: World) -> None:
    first.env["TOY_REGISTRY"] = f"127.0.0.1:{free_port()}"
    first.happened()
    done = first.said("smoke", records="push")
    assert done.code == 0, done.out + done.err
    assert first.happened() == ALL[:4]
    assert done.out.count("no shared results: no registry answers at") == 1
    assert done.out.count("Traceback") == 0
    assert first.ran("smoke", records="push") == []


def test_a_record_is_an_artifact_that_comes_back_byte_for_byte(place: tuple[str, str]) -> None:
    address, _ = place
    content, name = b'{"a": 1}\n', f"t-{uuid.uuid4().hex}"
    assert records.read_record(address, RECORDS, name) is None
    for _ in range(2):
        records.write_record(address, RECORDS, name, content, NullLog())
    assert records.read_record(address, RECORDS, name) == content
    found = api.get_manifest(address, RECORDS, name)
    assert found is not None
    assert found.value["artifactType"] == records.ARTIFACT_TYPE
    assert found.value["layers"][0]["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_blob_that_is_gone_from_the_registry_is_said_as_that(place: tuple[str, str]) -> None:
    address, _ = place
    content, name = f"{uuid.uuid4()}".encode(), f"t-{uuid.uuid4().hex}"
    records.write_record(address, RECORDS, name, content, NullLog())
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert requests.delete(f"http://{address}/v2/{RECORDS}/blobs/{digest}", timeout=10).status_code == 202
    with pytest.raises(TandemError, match="its content is gone"):
        records.read_record(address, RECORDS, name)


def test_writing_to_nobody_is_unreachable_and_not_tried_again() -> None:
    log = NullLog()
    with pytest.raises(RegistryUnreachable):
        records.write_record(f"127.0.0.1:{free_port()}", RECORDS, "t", b"x", log)
    assert log.lines == []
    assert TRIES > 1
