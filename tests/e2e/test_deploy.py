"""The main job, for real: from the checkout to a completion of an engine over two nodes; the second time, nothing."""

import json
import urllib.request

import pytest

from pipeline.host import engine
from pipeline.registry import api
from tests import stored
from tests.e2e.conftest import CLUSTER, Project

pytestmark = pytest.mark.timeout(3600)


def test_an_engine_of_two_ranks_over_two_nodes_answers(deployed: Project) -> None:
    asked = {"model": "tiny", "prompt": "a b c", "max_tokens": 3, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{deployed.port}/v1/completions",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        found = json.load(answer)
    assert found["usage"]["completion_tokens"] == 3
    nodes = deployed.record(f"deploy:{CLUSTER}")["nodes"]
    assert [node["ranks"] for node in nodes] == [[0], [1]]


def test_the_nodes_run_the_very_digest_that_was_built_smoked_and_pushed(deployed: Project) -> None:
    digest = deployed.record("build:cpu")["digest"]
    assert deployed.record("smoke:cpu")["digest"] == digest
    assert api.find_digest(deployed.registry, "tandem/cpu", digest) == digest
    for node in deployed.record(f"deploy:{CLUSTER}")["nodes"]:
        assert engine.find_container("local", node["container"])["Image"] == digest


def test_the_image_is_of_the_target_s_architecture(deployed: Project) -> None:
    found = engine.find_image("local", deployed.record("build:cpu")["digest"])
    assert (found["Os"], found["Architecture"]) == ("linux", "arm64")


def test_ranks_sleep_while_they_wait_where_an_emulator_runs_them(deployed: Project) -> None:
    script = "for p in /proc/[0-9]*; do grep -sq emulation/patience.so $p/maps && cat $p/comm; done; true"
    emulated = engine.get("local", "/info")["Architecture"] != "aarch64"
    for node in deployed.record(f"deploy:{CLUSTER}")["nodes"]:
        container = engine.client().containers.get(node["container"])
        loaded = container.exec_run(["bash", "-c", script]).output
        assert isinstance(loaded, bytes)
        assert (b"ray::RayWorker" in loaded) == emulated


def test_a_second_deploy_only_looks(deployed: Project) -> None:
    answer = deployed.doit("deploy")
    assert answer.returncode == 0
    assert set(deployed.ends().values()) == {"skipped"}


def test_a_lost_registry_brings_back_exactly_what_was_lost(deployed: Project) -> None:
    stored.remove_registry(deployed.registry, volume=True)
    plan = deployed.plan()
    assert {task for task, action in plan.items() if action == "run"} == {"registry", "push:cpu"}
    assert deployed.doit("deploy").returncode == 0
    ran = {task for task, end in deployed.ends().items() if end != "skipped"}
    assert ran == {"registry", "push:cpu"}


def test_a_killed_node_is_noticed(deployed: Project) -> None:
    worker = deployed.record(f"deploy:{CLUSTER}")["nodes"][1]["container"]
    engine.client().containers.get(worker).kill()
    assert {task for task, action in deployed.plan().items() if action != "skip"} == {f"deploy:{CLUSTER}"}
