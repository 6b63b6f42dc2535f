"""The verdict is worth something: with rank 1's share spoiled, it fails. This time on vLLM's own executor."""

import json
import struct
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace as changed

from pipeline.cluster import deploy, tiny_model
from pipeline.cluster.deploy import DeployError, DeployTarget, PushedImage
from pipeline.cluster.nodes import remove_cluster
from pipeline.cluster.service_api import Completion
from pipeline.config import loader
from pipeline.core.log import NullLog
from pipeline.host import engine
from tests.e2e.conftest import CLUSTER, Project
from tests.ports import free_port

SPOILED = "model.layers.0.self_attn.o_proj.weight"


def spoiled(checkpoint: bytes) -> bytes:
    """The checkpoint, with the input columns of one matrix that rank 1 of 2 holds a tenth larger."""
    (length,) = struct.unpack_from("<Q", checkpoint)
    entry = json.loads(checkpoint[8 : 8 + length])[SPOILED]
    start, end = (8 + length + offset for offset in entry["data_offsets"])
    rows, columns = entry["shape"]
    values = array("f", checkpoint[start:end])
    for row in range(rows):
        for column in range(columns // 2, columns):
            values[row * columns + column] *= 1.1
    return checkpoint[:start] + values.tobytes() + checkpoint[end:]


@pytest.fixture
def target(deployed: Project, tmp_path: Path) -> Iterator[DeployTarget[PushedImage]]:
    """The deployed cluster's like, under another name and port, with the executor `none`; the first one is stopped."""
    down = deployed.doit("down")
    assert down.returncode == 0
    loaded = loader.load_config(deployed.root)
    cluster = loaded.cluster(CLUSTER)
    digest = deployed.record("push:cpu")["digest"]
    tiny_model.write_model(tmp_path / "model")
    yield DeployTarget(
        name="spoiled",
        cluster=changed(cluster, executor="none", serve=changed(cluster.serve, port=free_port())),
        image=PushedImage(deployed.registry, "tandem/cpu", digest),
        platform=loaded.images[cluster.image].platform,
        model=tmp_path / "model",
    )
    remove_cluster(engine.client(), "spoiled")


@pytest.mark.timeout(1800)
def test_a_spoiled_share_of_rank_1_makes_the_verdict_fail(
    target: DeployTarget[PushedImage], deployed: Project, tmp_path: Path
) -> None:
    reference = convert(deployed.record(f"reference:{CLUSTER}")["answer"], Completion)
    head, worker = deploy.plan_target(target)
    checkpoint = "model/model.safetensors"
    files = {**worker.files, checkpoint: spoiled(worker.files[checkpoint])}
    with pytest.raises(DeployError) as failure:
        deploy.deploy_plans(
            (head, replace(worker, files=files)), target.cluster, reference, tmp_path / "logs", NullLog()
        )
    assert failure.value.step == "verdict"
    assert failure.value.cause == "wrong-answer"
