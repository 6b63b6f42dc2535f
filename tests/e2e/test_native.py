"""A combined image that needs no emulator: from somebody else's image to launchers of every era on two machines."""

import json
import shutil
from collections.abc import Iterator
from uuid import uuid4

import pytest
import yaml

from pipeline.core.log import NullLog
from pipeline.host import engine
from pipeline.lock import lockfile
from pipeline.lock.contents import CombinedLock
from tests.docker import era_image
from tests.e2e.conftest import Project

pytestmark = pytest.mark.timeout(1800)
NAME = "native"
ERAS = ("era A", "era A, mods", "era B", "era C", "era D")


@pytest.fixture(scope="module")
def foreign(project: Project) -> Iterator[str]:
    """An image with Ray whose entrypoint serves, and without the launcher's script; NAME:TAG in the registry."""
    with pytest.MonkeyPatch.context() as patch:
        # A lock that CI would not make: the image's place in a registry is another in each run.
        patch.setenv("TANDEM_LOCK", "")
        assert project.doit("registry").returncode == 0
        repository, tag = f"{project.registry}/foreign/{NAME}", uuid4().hex[:8]
        client = engine.client()
        container = client.containers.create(
            era_image.made(NullLog()), ["bash", "-c", "rm run-cluster-node.sh"], working_dir="/workspace/vllm"
        )
        try:
            container.start()
            assert container.wait()["StatusCode"] == 0
            changes = ['ENTRYPOINT ["bash", "-c", "echo serving; sleep 30"]', "WORKDIR /srv"]
            client.api.commit(str(container.id), repository, tag, changes=changes)
        finally:
            container.remove(force=True, v=True)
        assert "errorDetail" not in client.images.push(repository, tag=tag)
        client.images.remove(f"{repository}:{tag}", force=True)
        yield f"{repository}:{tag}"


@pytest.fixture(scope="module")
def built(project: Project, foreign: str) -> Project:
    """The copy with an image on top of that one, smoked and pushed."""
    _write(project, NAME, foreign)
    answer = project.doit(f"push:{NAME}")
    assert answer.returncode == 0, answer.stdout[-3000:]
    return project


def _write(project: Project, name: str, base: str) -> None:
    folder = project.root / "dockerfiles" / name
    folder.mkdir()
    shutil.copy(project.root / "dockerfiles/gb10/Dockerfile", folder)
    image = {
        "platform": era_image.image().platform,
        "base": {"image": base},
        "python": {"requirements": ["iniconfig"]},
        "smoke": {
            "imports": ["ray", "iniconfig"],
            "ray": False,
            "without": ["earlyoom", "git", "curl", "patch", "uv", "rdma"],
        },
    }
    (folder / "image.yaml").write_text(yaml.safe_dump(image))


def test_only_what_was_asked_for_is_added(built: Project) -> None:
    assert [wheel.name for wheel in lockfile.read_lock(NAME, built.root).wheels] == ["iniconfig"]
    assert "ray" in lockfile.read_lock(NAME, built.root).inside


def test_the_lock_answers_as_long_as_the_request_is_the_same(built: Project) -> None:
    assert built.doit(f"lock:{NAME}").returncode == 0
    assert built.ends()[f"lock:{NAME}"] == "skipped"


def test_a_second_build_gives_the_same_digest(built: Project) -> None:
    before = built.record(f"build:{NAME}")["digest"]
    assert built.doit("forget", f"build:{NAME}").returncode == 0
    assert built.doit(f"build:{NAME}").returncode == 0
    assert built.ends()[f"build:{NAME}"] == "ran"
    assert built.record(f"build:{NAME}")["digest"] == before


def test_a_pruned_base_is_pulled_again_when_it_is_needed(built: Project) -> None:
    base = lockfile.read_lock_of(CombinedLock, NAME, built.root).base
    # By its digest: under all names, the build's own too.
    engine.client().images.remove(base.rpartition("@")[2], force=True)
    assert engine.find_image("local", base.rpartition("@")[2]) is None
    assert built.doit("forget", f"wheels:{NAME}").returncode == 0
    assert built.doit(f"wheels:{NAME}").returncode == 0
    assert engine.find_image("local", base) is not None


def test_a_base_that_only_this_engine_has_can_be_built_on(built: Project) -> None:
    images = engine.client().images
    images.get(lockfile.read_lock_of(CombinedLock, NAME, built.root).base.rpartition("@")[2]).tag(
        "only-here.invalid/native", "1"
    )
    try:
        _write(built, "here", "only-here.invalid/native:1")
        answer = built.doit("build:here")
        assert answer.returncode == 0, answer.stdout[-3000:]
        assert "used as this engine has it" in answer.stdout
        images.remove(f"tandem/here:{built.record('build:here')['digest'].removeprefix('sha256:')[:12]}")
    finally:
        images.remove("only-here.invalid/native:1")


def test_launchers_of_every_era_drive_it_on_two_machines(built: Project) -> None:
    answer = built.doit(f"smoke:{NAME}:launcher")
    assert answer.returncode == 0, answer.stdout[-3000:]
    report = json.loads((built.root / f"artifacts/smoke/{NAME}.launcher.json").read_text())
    assert {name: check["outcome"] for name, check in report["checks"].items()} == dict.fromkeys(
        (*(f"point {number}" for number in range(1, 15)), *ERAS), "ok"
    )
    assert all("open: Ray runs without a token" in report["checks"][era]["details"][0] for era in ERAS)
    assert built.doit("lab", "ps", "--json").stdout.count('"name"') == 0
