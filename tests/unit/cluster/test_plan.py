import io
import json
import tarfile
from dataclasses import replace as replace_state
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from pipeline.cluster.nodes import ContainerState, container_state, difference, pack_files, unpack_tar
from pipeline.cluster.plan import AGENT_PORTS, TOKEN_FILE, NodePlan, plan_nodes, single_rank
from pipeline.commands import ps
from pipeline.config.models import Cluster, Node, Serve

DIGEST = "sha256:" + "a" * 64
IMAGE = f"127.0.0.1:5000/cpu@{DIGEST}"
PLATFORM = "linux/arm64"
LOCAL = Cluster(image="cpu", nodes=(Node(name="head"), Node(name="worker")), serve=Serve(args=("--dtype", "float32")))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def _plans(cluster: Cluster, model: Path | None, *, emulated: bool = False) -> tuple[NodePlan, ...]:
    return plan_nodes("local", cluster, IMAGE, PLATFORM, model=model, emulated=emulated)


def test_the_head_serves_and_the_worker_only_joins(model: Path) -> None:
    head, worker = _plans(LOCAL, model)
    assert head.serve == (
        *("vllm", "serve", "/opt/tandem/model", "--served-model-name", "tiny", "--host", "0.0.0.0", "--port", "8000"),
        *("--tensor-parallel-size", "2", "--distributed-executor-backend", "ray", "--dtype", "float32"),
    )
    assert worker.serve is None
    assert worker.ray is not None
    assert worker.ray[5:7] == ("--address", "tandem-local-head:6379")


def test_without_ray_every_node_gets_its_rank_and_all_but_the_head_are_headless(model: Path) -> None:
    head, worker = _plans(replace(LOCAL, executor="none"), model)
    assert head.ray is None
    assert worker.ray is None
    assert head.serve is not None
    assert worker.serve is not None
    assert "--headless" not in head.serve
    assert worker.serve[-2:] == ("--dtype", "float32")
    assert " ".join(worker.serve).endswith(
        "--tensor-parallel-size 2 --nnodes 2 --node-rank 1 --master-addr tandem-local-head --master-port 29501 "
        "--headless --dtype float32"
    )


@pytest.mark.parametrize(("nodes", "accelerators"), [(1, 1), (2, 1), (2, 4), (3, 2)])
def test_ranks_are_nodes_times_accelerators(model: Path, nodes: int, accelerators: int) -> None:
    many = replace(LOCAL, accelerators=accelerators, nodes=tuple(Node(name=f"n{i}") for i in range(nodes)))
    plans = _plans(many, model)
    assert [rank for plan in plans for rank in plan.ranks] == list(range(nodes * accelerators))
    assert plans[0].serve is not None
    assert plans[0].serve[plans[0].serve.index("--tensor-parallel-size") + 1] == str(nodes * accelerators)
    assert all(plan.ray and plan.ray[plan.ray.index("--num-gpus") + 1] == str(accelerators) for plan in plans)


def test_one_rank_alone_needs_neither_ray_nor_peers(model: Path) -> None:
    (plan,) = plan_nodes("local-reference", single_rank(LOCAL), IMAGE, PLATFORM, model=model)
    assert plan.ray is None
    assert plan.serve is not None
    assert plan.serve[9:] == ("--tensor-parallel-size", "1", "--dtype", "float32")


def test_only_the_head_is_published_and_only_on_its_port(model: Path) -> None:
    assert [plan.published for plan in _plans(LOCAL, model)] == ["8000", None]


def test_everything_that_decides_the_container_changes_its_args_label(model: Path) -> None:
    before = [plan.args for plan in _plans(LOCAL, model)]
    assert [plan.args for plan in _plans(LOCAL, model)] == before
    for changed in (
        replace(LOCAL, serve=replace(LOCAL.serve, args=("--dtype", "bfloat16"))),
        replace(LOCAL, serve=replace(LOCAL.serve, env={"A": "1"})),
        replace(LOCAL, serve=replace(LOCAL.serve, port=8001)),
        replace(LOCAL, executor="none"),
    ):
        assert _plans(changed, model)[0].args != before[0]
    assert plan_nodes("local", LOCAL, IMAGE.replace("a", "b"), PLATFORM, model=model)[0].args != before[0]
    (model / "config.json").write_text('{"other": 1}')
    assert _plans(LOCAL, model)[0].args != before[0]


def test_labels_are_text_that_a_look_can_compare(model: Path) -> None:
    labels = _plans(LOCAL, model)[1].labels
    assert labels["tandem.role"] == "worker"
    assert labels["tandem.rank"] == "1"
    assert labels["tandem.digest"] == DIGEST
    assert len(labels["tandem.args"]) == 64


def test_the_command_survives_as_a_list_of_words(model: Path) -> None:
    odd = ("--chat-template", "{{ \"a b\" }} 'x' $HOME \\ \n")
    plan = _plans(replace(LOCAL, serve=replace(LOCAL.serve, args=odd)), model)[0]
    assert tuple(json.loads(plan.command[-1])["serve"][-2:]) == odd


def test_the_shim_is_there_only_under_an_emulator(model: Path) -> None:
    with_shim, without = _plans(LOCAL, model, emulated=True)[0], _plans(LOCAL, model)[0]
    assert with_shim.env["PYTHONPATH"] == "/opt/tandem/emulation"
    assert {"emulation/sitecustomize.py", "emulation/patience.c"} <= with_shim.files.keys()
    assert "PYTHONPATH" not in without.env
    assert not [path for path in without.files if path.startswith("emulation/")]


def test_only_stand_ins_get_the_environment_of_stand_ins(model: Path) -> None:
    machines = replace(LOCAL, nodes=(Node(name="a", address="10.0.0.1"), Node(name="b", address="10.0.0.2")))
    assert _plans(LOCAL, model)[0].env["TANDEM_CPU_CLUSTER"] == "1"
    plan = _plans(machines, model)[1]
    assert "TANDEM_CPU_CLUSTER" not in plan.env
    assert plan.env["VLLM_HOST_IP"] == "10.0.0.2"
    assert plan.network is None
    assert plan.ray is not None
    assert "10.0.0.1:6379" in plan.ray


@pytest.mark.parametrize("executor", ["ray", "none"])
def test_on_machines_the_api_listens_on_loopback_alone(model: Path, executor: Literal["ray", "none"]) -> None:
    nodes = (Node(name="a", address="10.0.0.1"), Node(name="b", address="10.0.0.2"))
    head, worker = _plans(replace(LOCAL, nodes=nodes, executor=executor), model)
    assert head.serve is not None
    assert head.serve[head.serve.index("--host") + 1] == "127.0.0.1"
    assert "0.0.0.0" not in (*head.serve, *(worker.serve or ()))
    assert (head.published, worker.published) == (None, None)


def test_the_configured_environment_has_the_last_word(model: Path) -> None:
    plan = _plans(replace(LOCAL, serve=replace(LOCAL.serve, env={"OMP_NUM_THREADS": "7"})), model)[0]
    assert plan.env["OMP_NUM_THREADS"] == "7"


def test_a_model_on_the_nodes_is_mounted_and_not_copied() -> None:
    plan = _plans(replace(LOCAL, serve=replace(LOCAL.serve, model="/srv/models/q")), None)[0]
    assert plan.mounts == {"/srv/models/q": "/srv/models/q"}
    assert plan.serve is not None
    assert plan.serve[2] == "/srv/models/q"


def test_a_snapshot_of_the_hugging_face_cache_is_mounted_with_the_blobs_that_it_links_to() -> None:
    repository = "/srv/hf/hub/models--org--name"
    plan = _plans(replace(LOCAL, serve=replace(LOCAL.serve, model=f"{repository}/snapshots/0123abc")), None)[0]
    assert plan.mounts == {repository: repository}
    assert plan.serve is not None
    assert plan.serve[2] == f"{repository}/snapshots/0123abc"


@pytest.mark.parametrize("path", ["/snapshots/x", "/srv/snapshots/x", "/srv/models--a--b/snapshots"])
def test_other_folders_are_mounted_as_they_are(path: str) -> None:
    plan = _plans(replace(LOCAL, serve=replace(LOCAL.serve, model=path)), None)[0]
    assert plan.mounts == {path: path}


def test_only_root_can_read_the_token() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_files({TOKEN_FILE: b"x", "model/config.json": b"{}"}))) as tar:
        modes = {member.name: member.mode for member in tar}
    assert modes == {"opt/tandem/secrets/ray-token": 0o600, "opt/tandem/model/config.json": 0o644}


def _state(plan: NodePlan, **other: object) -> ContainerState:
    attrs = {
        "Name": f"/{plan.container}",
        "State": {"Status": other.get("status", "running"), "ExitCode": 0},
        "Config": {"Labels": {**plan.labels, **other.get("labels", {})}},  # type: ignore[dict-item]
        "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}], "9/tcp": None}},
    }
    return container_state(attrs)


def test_the_right_container_is_told_from_a_wrong_one(model: Path) -> None:
    plan = _plans(LOCAL, model)[0]
    assert difference(plan, _state(plan)) is None
    assert difference(plan, None) == "tandem-local-head does not exist"
    assert difference(plan, _state(plan, status="exited")) == "tandem-local-head is exited"
    other = difference(plan, _state(plan, labels={"tandem.args": "x"}))
    assert other == "tandem-local-head has tandem.args=x"


def test_ps_tells_a_node_that_runs_from_one_that_is_not_there(model: Path) -> None:
    plan = _plans(LOCAL, model)[1]
    row = ps.row("local", replace_state(_state(plan), published=None))
    assert (row["node"], row["state"], row["rank"], row["digest"]) == ("worker", "running", "1", DIGEST)
    assert row["health"] == ""
    assert ps.absent("worker", "local")["state"] == "absent"


def test_all_ports_of_ray_are_fixed_and_different(model: Path) -> None:
    ray = _plans(LOCAL, model)[0].ray
    assert ray is not None
    ports = [ray[ray.index(flag) + 1] for flag in ("--port", *AGENT_PORTS)]
    assert len(set(ports)) == 5


def test_the_published_port_is_read_from_the_engines_description(model: Path) -> None:
    assert _state(_plans(LOCAL, model)[0]).published == 8000


def test_unpacking_keeps_plain_files_by_their_own_names(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("logs/raylet.out", "../../escape.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 2
            tar.addfile(entry, io.BytesIO(b"hi"))
    unpack_tar(buffer.getvalue(), tmp_path / "in")
    assert sorted(file.name for file in tmp_path.rglob("*.*")) == ["escape.txt", "raylet.out"]
    assert (tmp_path / "in" / "escape.txt").exists()
