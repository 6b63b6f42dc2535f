"""The project's own graph: what a bare kind means, what needs an engine, and how locks are made by default."""

import hashlib
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pipeline.config import loader
from pipeline.config.loader import Config
from pipeline.config.models import Pipeline
from pipeline.graph.task import Outputs
from pipeline.image import wheels
from pipeline.tasks import images, project
from pipeline.tasks.needs_engine import needs_engine

ROOT = Path(__file__).parents[3]


def loaded(default: str, image: str) -> Config:
    """The project's configuration, with one cluster of that name and image."""
    found = loader.load_config(ROOT)
    local = found.pipeline.clusters["local"]
    changed = {name: getattr(local, name) for name in local.__struct_fields__} | {"image": image}
    return replace(found, pipeline=Pipeline(default=default, clusters={default: type(local)(**changed)}))


@pytest.mark.parametrize(("default", "image"), [("local", "cpu"), ("local", "gb10"), ("gb10", "cpu"), ("lab", "cpu")])
def test_a_bare_kind_means_the_default_cluster_or_its_image_whatever_they_are_called(default: str, image: str) -> None:
    means = project.build_graph(loaded(default, image)).defaults
    of_image = {kind: f"{kind}:{image}" for kind in ("lock", "base", "wheels", "build", "smoke", "push")}
    assert means == {**of_image, "reference": f"reference:{default}", "deploy": f"deploy:{default}"}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("lock",), False),
        (("lock:registry", "model"), False),
        (("wheels:cpu", "base"), False),
        (("lock:gb10",), True),
        (("lock:*",), True),
        (("base", "build"), True),
        (("deploy",), True),
    ],
)
def test_only_what_an_engine_has_a_part_in_wants_one(words: tuple[str, ...], wanted: bool) -> None:
    assert needs_engine(ROOT, words) == wanted


@pytest.mark.parametrize(
    ("env", "mode"),
    [
        ({}, ""),
        ({"CI": "true"}, "frozen"),
        ({"CI": "1", "TANDEM_LOCK": ""}, ""),
        ({"TANDEM_LOCK": "upgrade"}, "upgrade"),
    ],
)
def test_in_ci_locks_are_frozen_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], mode: str
) -> None:
    for name in ("CI", "TANDEM_LOCK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert images.lock_mode() == mode


def test_every_task_of_the_project_counts_the_function_that_runs_it() -> None:
    graph = project.build_graph(loader.load_config(ROOT))
    for name, task in graph.tasks.items():
        own = [code for code in task.inputs.code if code.startswith("pipeline.tasks.")]
        assert len(own) == 1, name


def test_wheels_claim_the_list_of_their_layers_which_build_reads() -> None:
    layers = {"a": "0" * 64, "shared-0": "1" * 64}
    text = json.dumps([{"name": name, "sha256": digest, "size": 1} for name, digest in layers.items()])
    digest = hashlib.sha256(text.encode()).hexdigest()
    outputs: Outputs = {"digest": f"sha256:{digest}", "layers": dict(layers), "files": 2, "size": 2}
    claimed = project.build_graph(loader.load_config(ROOT)).tasks["wheels:cpu"].world(outputs)
    folder = f"artifacts/wheels/{digest}"
    assert {(str(claim.what["path"]), claim.what["sha256"]) for claim in claimed} == {
        (f"{folder}/{wheels.LAYERS_FILE}", digest),
        *((f"{folder}/{layer}.tar", sha256) for layer, sha256 in layers.items()),
    }
