"""The verdict is worth something: with rank 1's share of the weights spoiled, it fails."""

import json
import struct
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from pipeline import cluster as clusters
from pipeline import completion, config, deploy, engine, tiny
from pipeline.deploy import DeployError, Target
from pipeline.log import NullLog

ROOT = Path(__file__).parents[2]
PORT = 8017
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
def target(tmp_path: Path) -> Iterator[Target]:
    """The default cluster under another name and port, with the image that its own deploy last recorded."""
    loaded = config.load(ROOT)
    default = loaded.pipeline.default
    cluster = loaded.cluster(default)
    serving = engine.container("local", f"tandem-{default}-{cluster.nodes[0].name}")
    assert serving is not None, f"deploy:{default} has not run"
    tiny.make(tmp_path / "model")
    yield Target(
        name="corrupt",
        cluster=changed(cluster, serve=changed(cluster.serve, port=PORT)),
        image=str(serving["Config"]["Image"]),
        platform=loaded.images[cluster.image].platform,
        model=tmp_path / "model",
    )
    clusters.clear(engine.client(), "corrupt")


@pytest.mark.timeout(1800)
def test_a_spoiled_share_of_rank_1_makes_the_verdict_fail(target: Target, tmp_path: Path) -> None:
    whole = config.load(ROOT)
    serving = whole.cluster(whole.pipeline.default).serve
    reference = completion.ask(serving.port, serving.name, within=600)
    head, worker = deploy.plans(target)
    checkpoint = "model/model.safetensors"
    files = {**worker.files, checkpoint: spoiled(worker.files[checkpoint])}
    with pytest.raises(DeployError) as failure:
        deploy.carry_out((head, replace(worker, files=files)), target.cluster, reference, tmp_path / "logs", NullLog())
    assert failure.value.step == "verdict"
    assert failure.value.cause == "wrong-answer"
