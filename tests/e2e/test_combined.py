"""The combined image, for real: lock, build, smoke, push, deploy on an image that others publish; and every era."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pipeline.cluster.nodes import remove_cluster
from pipeline.core.log import NullLog
from pipeline.host import engine
from pipeline.lock import lockfile
from pipeline.lock.contents import CombinedLock
from pipeline.registry import api
from tests import standins
from tests.docker.test_reader import make
from tests.e2e.conftest import Project
from tests.ports import free_port

pytestmark = pytest.mark.timeout(3600)
CLUSTER = f"combined-{os.getpid()}"


@pytest.fixture(scope="module")
def combined(
    project: Project, monkeypatch_module: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """The copy whose gb10 is on a stand-in, after `doit deploy:combined` has ended well."""
    # A lock that CI would not make: the stand-in's place in a registry is another in each run.
    monkeypatch_module.setenv("TANDEM_LOCK", "")
    assert project.doit("registry").returncode == 0
    folder = project.root / "dockerfiles" / "gb10"
    model, cluster = (made(project.registry, NullLog()) for made in (standins.hellohal, standins.vllm_node))
    model = _among_others(project.registry, model, tmp_path_factory.mktemp("other"))
    image = yaml.safe_load((folder / "image.yaml").read_text())
    del image["base"], image["python"]
    image["combine"] = {"model_from": model, "cluster_from": cluster}
    # CPUs stand in for accelerators on the nodes.
    image["distributions"] = ["tandem-cpu-cluster"]
    shutil.copytree(project.root / "dockerfiles/cpu/tandem-cpu-cluster", folder / "tandem-cpu-cluster")
    (folder / "image.yaml").write_text("# what a person wrote\n" + yaml.safe_dump(image))
    advice = project.doit("advise", "gb10", "--quick", "--json")
    assert advice.returncode == 0
    # Before it stands how far the reading is, which goes to stderr.
    (project.root / "advice.json").write_text(advice.stdout[advice.stdout.index("{\n") :])
    _add_cluster(project)
    try:
        answer = project.doit(f"deploy:{CLUSTER}")
        assert answer.returncode == 0, answer.stdout[-3000:]
        yield project
    finally:
        for name in (CLUSTER, f"{CLUSTER}-reference"):
            remove_cluster(engine.client(), name)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def _among_others(address: str, image: str, scratch: Path) -> str:
    """The image as one platform of two under a tag, as most that people publish are; NAME:TAG."""
    other, both = f"{address}/standin/other:1", f"{address}/standin/model:1"
    make(scratch, other, "linux/amd64", "FROM scratch\nADD root.tar /\n")
    argv = ["docker", "buildx", "imagetools", "create", "--tag", both, image, other]
    subprocess.run(argv, check=True, capture_output=True)
    return both


def _add_cluster(project: Project) -> None:
    file = project.root / "pipeline.local.yaml"
    local = yaml.safe_load(file.read_text())
    template = local["clusters"][local["default"]]
    serve = {**template["serve"], "port": free_port()}
    local["clusters"][CLUSTER] = {**template, "image": "gb10", "serve": serve}
    file.write_text(yaml.safe_dump(local))


def test_advice_on_the_two_images_is_what_was_found_out_by_hand(combined: Project) -> None:
    advice = json.loads((combined.root / "advice.json").read_text())
    outcomes = {one["combination"]: one["outcome"] for one in advice["combinations"]}
    assert outcomes.pop("on-top") == "works"
    assert set(outcomes.values()) == {"no"}
    says = {one["combination"]: " ".join(one["says"]) for one in advice["combinations"]}
    assert "stat ./run-cluster-node.sh: no such file or directory" in says["cleared"]
    assert "Qwen3_5MoeForConditionalGeneration" in says["files"]
    assert "torch" in says["in-place"]


def test_the_image_yaml_that_works_was_written_into_what_was_there(combined: Project) -> None:
    text = (combined.root / "dockerfiles/gb10/image.yaml").read_text()
    assert text.startswith("# what a person wrote\n")
    image = yaml.safe_load(text)
    assert "/standin/model@" in image["base"]["image"]
    assert "@sha256:" in image["base"]["image"]
    assert image["python"]["requirements"] == ["ray[default]", "uv"]
    assert image["smoke"]["without"] == ["earlyoom"]


def test_two_ranks_over_two_nodes_answer_from_the_combined_image(combined: Project) -> None:
    deployed = combined.record(f"deploy:{CLUSTER}")
    assert [node["ranks"] for node in deployed["nodes"]] == [[0], [1]]
    assert deployed["digest"] == combined.record("build:gb10")["digest"]
    assert deployed["executor"] == "ray"


def test_every_layer_of_the_base_is_as_it_was(combined: Project) -> None:
    locked = lockfile.read_lock_of(CombinedLock, "gb10", combined.root)
    repository, _, digest = locked.base.partition("/")[2].partition("@")
    base = api.get_manifest(combined.registry, repository, digest)
    made = api.get_manifest(combined.registry, "tandem/gb10", combined.record("push:gb10")["digest"])
    assert base is not None
    assert made is not None
    (digest,) = (one["digest"] for one in base.value["manifests"] if one["platform"]["architecture"] == "arm64")
    base = api.get_manifest(combined.registry, repository, digest)
    assert base is not None
    layers = [layer["digest"] for layer in base.value["layers"]]
    assert [layer["digest"] for layer in made.value["layers"]][: len(layers)] == layers


def test_what_was_inside_is_in_the_lock_and_what_was_added_is_nothing_of_it(combined: Project) -> None:
    locked = lockfile.read_lock("gb10", combined.root)
    assert locked.inside["vllm"].startswith("0.17.1rc1")
    assert "ray" not in locked.inside
    added = {wheel.name for wheel in locked.wheels}
    assert {"ray", "uv"} <= added
    assert not added & locked.inside.keys()
    report = json.loads((combined.root / "artifacts/smoke/gb10.json").read_text())
    assert {check["outcome"] for check in report["checks"].values()} == {"ok"}


def test_what_the_image_did_before_is_kept_as_a_program(combined: Project) -> None:
    made = combined.record("build:gb10")["digest"]
    container = engine.client().containers.create(made, ["true"])
    try:
        chunks, _ = container.get_archive("/usr/local/bin/tandem-serve")
        assert b"exec /app/entrypoint.sh" in b"".join(chunks)
    finally:
        container.remove(force=True, v=True)
    assert not engine.find_image("local", made)["Config"].get("Entrypoint")


def test_a_second_deploy_only_looks(combined: Project) -> None:
    assert combined.doit(f"deploy:{CLUSTER}").returncode == 0
    assert set(combined.ends().values()) == {"skipped"}
