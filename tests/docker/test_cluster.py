"""Bringing clusters up and down on the real engine, with an image whose `ray` and `vllm` are small scripts.

What the real ones do is seen in tests/e2e; here it is the order of steps, and that nothing stays behind.
"""

import dataclasses
import io
import json
import re
import secrets
import socket
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from pipeline.cluster import deploy
from pipeline.cluster.deploy import DeployError, DeployTarget, PushedImage
from pipeline.cluster.nodes import LOWEST_CPU_SHARES, open_nodes, remove_cluster
from pipeline.cluster.plan import SECRETS_FILE, TANDEM_FOLDER, TOKEN_FILE
from pipeline.cluster.service_api import Completion
from pipeline.commands.down import DownCommand
from pipeline.commands.logs import LogsCommand
from pipeline.commands.ps import PsCommand
from pipeline.config.models import Cluster, Node, Serve
from pipeline.core import platforms, procs
from pipeline.core.errors import Cancelled
from pipeline.core.log import NullLog
from pipeline.host import engine
from tests import stored
from tests.ports import free_port
from tests.trigger import Trigger

TAG = "tandem-test/cluster:1"
RAY = """
import os, pathlib, sys, time
head = "--head" in sys.argv
assert pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text(), "no token"
logs = pathlib.Path("/tmp/ray/session_1/logs")
logs.mkdir(parents=True, exist_ok=True)
if not pathlib.Path("/tmp/ray/session_latest").exists():
    os.symlink("session_1", "/tmp/ray/session_latest")
if os.environ.get("FAULT") == "raylet":
    print("Exception: The current node timed out during startup.", flush=True)
    sys.exit(1)
(logs / "worker-1.out").write_text(f"rank {0 if head else 1} in world size 2 is assigned as DP rank 0\\n")
print("Ray runtime started.", flush=True)
time.sleep(3600)
"""
VLLM = """
import http.server, json, os, sys
fault = os.environ.get("FAULT", "")
key = os.environ.get("VLLM_API_KEY", "")
print("INFO 01-01 00:00:00 [core.py:1] loading", sys.argv[1:], {"api_key": [key]}, flush=True)
if fault == "engine":
    print("RuntimeError: open shm in SHMManager failed", flush=True)
    sys.exit(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        wrong = key and self.path != "/health" and self.headers["Authorization"] != f"Bearer {key}"
        self.send_response(401 if wrong else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({"data": [{"id": "tiny"}]})
    def do_POST(self):
        if fault == "core":
            print("EngineDeadError: EngineCore encountered a fatal error", flush=True)
            os._exit(1)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        logprob = -1.5 if fault == "answer" else -1.0
        choice = {"text": "ba", "token_ids": [7], "prompt_token_ids": [1], "logprobs": {"token_logprobs": [logprob]}}
        self.answer({"choices": [choice]})
    def log_message(self, *args):
        pass
if fault != "hangs":
    http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
else:
    import time
    time.sleep(3600)
"""
TORCH = """
class Tensor:
    def __init__(self, value): self.value = value
    def __eq__(self, other): return self
    def all(self): return True
def full(shape, value): return Tensor(value)
"""
DISTRIBUTED = """
def init_process_group(*args, **kwargs): pass
def barrier(): pass
def all_reduce(tensor): pass
def destroy_process_group(): pass
"""


def _program(tar: tarfile.TarFile, path: str, content: str, mode: int = 0o755) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content.encode()))


def _from_host(tar: tarfile.TarFile, file: Path) -> None:
    """A program of this machine with the libraries that it needs."""
    tar.add(file.resolve(), str(file).lstrip("/"))
    for library in re.findall(r"(/\S+) \(0x", procs.capture(["ldd", str(file)])):
        tar.add(Path(library).resolve(), library.lstrip("/"))


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image of this machine's own platform: Python, a few tools, and programs called ray and vllm."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for tool in ("sh", "uname", "grep"):
            _from_host(tar, next(p for p in (Path("/bin", tool), Path("/usr/bin", tool)) if p.exists()))
        _python(tar)
        _program(tar, "usr/bin/ray", f"#!/usr/bin/python3\n{RAY}")
        _program(tar, "usr/bin/vllm", f"#!/usr/bin/python3\n{VLLM}")
        _program(tar, "opt/fake/torch/__init__.py", TORCH, 0o644)
        _program(tar, "opt/fake/torch/distributed.py", DISTRIBUTED, 0o644)
        _program(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)
    client = engine.client()
    client.api.import_image_from_data(raw.getvalue(), repository=TAG.partition(":")[0], tag=TAG.partition(":")[2])
    digest = str(engine.find_image("local", TAG)["Id"])
    yield f"{TAG.partition(':')[0]}@{digest}"
    client.images.remove(TAG, force=True)


def _python(tar: tarfile.TarFile) -> None:
    """This very interpreter and its standard library, as /usr/bin/python3 of the image."""
    binary, stdlib = Path(sys.executable).resolve(), sysconfig.get_path("stdlib")
    tar.add(binary, str(binary).lstrip("/"))
    modules = [str(file) for file in Path(stdlib, "lib-dynload").glob("*.so")]
    for library in set(re.findall(r"(/\S+) \(0x", procs.capture(["ldd", str(binary), *modules]))):
        tar.add(Path(library).resolve(), library.lstrip("/"))

    def lean(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        unwanted = ("/test", "/site-packages", "/__pycache__", "/idlelib", "/tkinter", "/ensurepip", "/lib2to3")
        return None if any(part in entry.name for part in unwanted) else entry

    tar.add(stdlib, stdlib.lstrip("/"), filter=lean)
    wrapper = f'#!/bin/sh\nexec {binary} "$@"\n'
    _program(tar, "usr/bin/python3", wrapper)


Target = DeployTarget[PushedImage]


@pytest.fixture
def target(image: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    cluster = Cluster(
        image="x",
        nodes=(Node(name="head"), Node(name="worker")),
        serve=Serve(port=free_port(), within=60, env={"PYTHONPATH": "/opt/fake"}),
    )
    name = f"test-{re.sub('[^a-z]+', '-', request.node.name)[5:35].strip('-')}"
    platform = "linux/" + platforms.architecture_of(engine.get("local", "/info")["Architecture"])
    repository, _, digest = image.partition("@")
    address, _, path = repository.partition("/")
    pushed = PushedImage(address, path, digest)
    yield DeployTarget(name=name, cluster=cluster, image=pushed, platform=platform, model=tmp_path / "model")
    remove_cluster(engine.client(), name)
    procs.resume()


def _with(target: Target, **env: str) -> Target:
    serve = replace(target.cluster.serve, env={**target.cluster.serve.env, **env})
    return DeployTarget(
        name=target.name,
        cluster=replace(target.cluster, serve=serve),
        image=target.image,
        platform=target.platform,
        model=target.model,
    )


REFERENCE = Completion(prompt_tokens=[1], tokens=[7], logprobs=[-1.0004], text="ba")


def _left(name: str) -> list[str]:
    client = engine.client()
    label = f"tandem.cluster={name}"
    there = [str(container.name) for container in stored.containers(client, label)]
    return there + [str(network.name) for network in client.networks.list(filters={"label": label})]


def _ids(target: Target) -> list[str]:
    return [engine.find_container("local", plan.container)["Id"] for plan in deploy.plan_target(target)]


def test_a_cluster_comes_up_answers_and_is_left_alone_the_second_time(target: Target, tmp_path: Path) -> None:
    log = NullLog()
    deployed = deploy.deploy(target, REFERENCE, tmp_path / "logs", log)
    assert [node.ranks for node in deployed.nodes] == [[0], [1]]
    assert deployed.endpoint == f"http://127.0.0.1:{target.cluster.serve.port}/v1"
    assert any("worker: rank 1 of 2" in line for line in log.lines)
    for plan in deploy.plan_target(target):
        assert engine.find_container("local", plan.container)["HostConfig"]["CpuShares"] == LOWEST_CPU_SHARES
    before = _ids(target)
    again = NullLog()
    assert deploy.deploy(target, REFERENCE, tmp_path / "logs", again) == deployed
    assert _ids(target) == before
    assert "containers are up to date and healthy; nothing to do" in again.lines


def test_another_argument_replaces_the_containers(target: Target, tmp_path: Path) -> None:
    deploy.deploy(target, REFERENCE, tmp_path / "logs", NullLog())
    before = _ids(target)
    deploy.deploy(_with(target, OTHER="1"), REFERENCE, tmp_path / "logs", NullLog())
    assert not set(before) & set(_ids(target))


def test_the_secrets_of_a_service_reach_it_and_are_shown_nowhere(target: Target, tmp_path: Path) -> None:
    canaries = [f"c4n4ry{secrets.token_hex(8)}" for _ in range(3)]
    serve = replace(target.cluster.serve, args=("--api-key", canaries[0], "--hf-token", canaries[1]))
    cluster = replace(target.cluster, serve=replace(serve, env={**serve.env, "DB_PASSWD": canaries[2]}))
    secret, log = dataclasses.replace(target, cluster=cluster), NullLog()
    deploy.deploy(secret, REFERENCE, tmp_path / "logs", log)
    plans = deploy.plan_target(secret)
    shown = [json.dumps(engine.find_container("local", plan.container)) for plan in plans]
    shown += log.lines + [file.read_text() for file in (tmp_path / "logs").rglob("*") if file.is_file()]
    assert [text for text in shown if "'--hf-token', '***'" in text]
    assert not [text for text in shown if any(canary in text for canary in canaries)]
    with open_nodes(plans) as nodes:
        for plan in plans:
            told = "import os, sys; print(oct(os.stat(sys.argv[1]).st_mode), open(sys.argv[1]).read())"
            status, output = nodes.run(plan, ["python3", "-c", told, f"{TANDEM_FOLDER}/{SECRETS_FILE}"])
            assert (status, output[:8]) == (0, "0o100600")
            assert json.loads(output[8:])["env"] == {"VLLM_API_KEY": canaries[0], "DB_PASSWD": canaries[2]}


def test_a_secret_decides_whether_the_cluster_serves_on_and_the_user_s_key_does_not(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = deploy.deploy(_with(target, DB_PASSWD="one-secret"), REFERENCE, tmp_path / "logs", NullLog())
    before = _ids(target)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-user"))
    again = deploy.deploy(_with(target, DB_PASSWD="one-secret"), REFERENCE, tmp_path / "logs", NullLog())
    assert (_ids(target), again.nodes) == (before, first.nodes)
    other = deploy.deploy(_with(target, DB_PASSWD="other-secret"), REFERENCE, tmp_path / "logs", NullLog())
    assert not set(before) & set(_ids(target))
    # A record of the first deploy must not take these containers for its own.
    assert all(old.labels != new.labels for old, new in zip(first.nodes, other.nodes, strict=True))


def test_the_service_listens_on_loopback_only_and_the_token_is_nowhere_to_be_read(
    target: Target, tmp_path: Path
) -> None:
    log = NullLog()
    deployed = deploy.deploy(target, REFERENCE, tmp_path / "logs", log)
    head = engine.find_container("local", deployed.nodes[0].container)
    bindings = [b for bindings in head["NetworkSettings"]["Ports"].values() for b in bindings or []]
    assert {binding["HostIp"] for binding in bindings} == {"127.0.0.1"}
    plans = deploy.plan_target(target)
    with open_nodes(plans) as nodes:
        tokens = {nodes.run(plan, ["sh", "-c", f"read x < {TANDEM_FOLDER}/{TOKEN_FILE}; echo $x"])[1] for plan in plans}
    (token,) = tokens
    assert len(token.strip()) == 64
    told = [json.dumps(head), json.dumps(to_builtins(deployed)), *log.lines]
    told += [file.read_text(errors="replace") for file in (tmp_path / "logs").rglob("*") if file.is_file()]
    assert not [text for text in told if token.strip() in text]


def test_an_engine_that_dies_fails_at_once_with_its_cause_and_leaves_only_logs(target: Target, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="took ranks on several nodes for ranks of one machine") as failure:
        deploy.deploy(_with(target, FAULT="engine"), REFERENCE, tmp_path / "logs", NullLog())
    assert failure.value.cause == "shared-memory"
    assert _left(target.name) == []
    assert "SHMManager" in (tmp_path / "logs" / "head.log").read_text()
    assert (tmp_path / "logs" / "worker-ray" / "worker-1.out").exists()


def test_a_raylet_that_is_too_slow_is_tried_again_and_then_named(target: Target, tmp_path: Path) -> None:
    log = NullLog()
    with pytest.raises(DeployError, match="30 s that Ray gives it") as failure:
        deploy.deploy(_with(target, FAULT="raylet"), REFERENCE, tmp_path / "logs", log)
    assert failure.value.cause == "raylet"
    assert any("(attempt 4 of 4)" in line for line in log.lines)
    assert _left(target.name) == []


def test_an_answer_that_differs_from_one_rank_fails_the_verdict(target: Target, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"^verdict: 1 of 1 log-probabilities") as failure:
        deploy.deploy(_with(target, FAULT="answer"), REFERENCE, tmp_path / "logs", NullLog())
    assert failure.value.cause == "wrong-answer"
    assert _left(target.name) == []


def test_an_engine_that_dies_of_the_completion_is_told_from_a_wrong_answer(target: Target, tmp_path: Path) -> None:
    with pytest.raises(DeployError) as failure:
        deploy.deploy(_with(target, FAULT="core"), REFERENCE, tmp_path / "logs", NullLog())
    assert (failure.value.step, failure.value.cause) == ("completion", "engine-core")
    assert _left(target.name) == []


def test_a_taken_port_is_named_before_anything_starts(target: Target, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", target.cluster.serve.port)), pytest.raises(DeployError) as failure:
        deploy.deploy(target, REFERENCE, tmp_path / "logs", NullLog())
    assert failure.value.step == "preflight"
    assert failure.value.cause == "port"
    assert _left(target.name) == []


@pytest.mark.parametrize("moment", ["tandem: ray is up", "tandem: engine starts"])
def test_an_interrupted_deploy_leaves_nothing(target: Target, tmp_path: Path, moment: str) -> None:
    with pytest.raises(Cancelled):
        deploy.deploy(_with(target, FAULT="hangs"), REFERENCE, tmp_path / "logs", Trigger(moment, procs.cancel))
    assert _left(target.name) == []


def test_a_killed_node_is_noticed_while_the_engine_is_awaited(target: Target, tmp_path: Path) -> None:
    def kill() -> None:
        engine.client().containers.get(f"tandem-{target.name}-worker").kill()

    with pytest.raises(DeployError, match="worker ended with status 137") as failure:
        deploy.deploy(
            _with(target, FAULT="hangs"), REFERENCE, tmp_path / "logs", Trigger("tandem: engine starts", kill)
        )
    assert failure.value.cause == "oom-kill"
    assert _left(target.name) == []


def _on_the_nodes(target: Target, model: Path) -> Target:
    """The target with a model that lies on the nodes."""
    cluster = replace(target.cluster, serve=replace(target.cluster.serve, model=str(model)))
    return DeployTarget(name=target.name, cluster=cluster, image=target.image, platform=target.platform, model=None)


def test_a_model_that_is_not_on_a_node_is_named_with_the_node_and_nothing_is_created(
    target: Target, tmp_path: Path
) -> None:
    missing = tmp_path / "not-there"
    with pytest.raises(DeployError, match=rf"head: serve\.model: {missing} does not exist on this node") as failure:
        deploy.deploy(_on_the_nodes(target, missing), REFERENCE, tmp_path / "logs", NullLog())
    assert (failure.value.step, failure.value.cause) == ("preflight", "model-missing")
    assert not missing.exists()
    assert _left(target.name) == []


def test_a_model_whose_links_lead_out_of_what_is_mounted_is_refused_by_name(target: Target, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "config.json").symlink_to(tmp_path / "model" / "config.json")
    with pytest.raises(DeployError, match=r"linked: config\.json is a link") as failure:
        deploy.deploy(_on_the_nodes(target, tmp_path / "linked"), REFERENCE, tmp_path / "logs", NullLog())
    assert (failure.value.step, failure.value.cause) == ("preflight", "model-missing")


def test_a_snapshot_of_the_hugging_face_cache_is_served(target: Target, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "1").write_text("the weights")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    on_nodes = _on_the_nodes(target, snapshot)
    deploy.deploy(on_nodes, REFERENCE, tmp_path / "logs", NullLog())
    plans = deploy.plan_target(on_nodes)
    with open_nodes(plans) as nodes:
        for plan in plans:
            assert nodes.run(plan, ["sh", "-c", f"read x < {snapshot}/config.json; echo $x"]) == (0, "the weights\n")


@pytest.fixture
def checkout(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder whose default cluster is the target's."""
    image = {"base": {"debian": "trixie", "packages": ["x"]}, "python": {"version": "3.13", "requirements": ["x"]}}
    cluster = {
        "image": "x",
        "nodes": [{"name": "head"}, {"name": "worker"}],
        "serve": {"port": target.cluster.serve.port},
    }
    (tmp_path / "dockerfiles" / "x").mkdir(parents=True)
    (tmp_path / "dockerfiles" / "x" / "image.yaml").write_text(json.dumps(image))
    (tmp_path / "dockerfiles" / "x" / "Dockerfile").write_text("")
    (tmp_path / "pipeline.yaml").write_text(json.dumps({"default": target.name, "clusters": {target.name: cluster}}))
    monkeypatch.chdir(tmp_path / "dockerfiles")


@pytest.mark.usefixtures("checkout")
def test_ps_logs_and_down_tell_of_the_cluster_and_end_it(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy.deploy(target, REFERENCE, tmp_path / "logs", NullLog())
    assert PsCommand().parse_execute(["--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [(node["node"], node["state"]) for node in nodes] == [("head", "running"), ("worker", "running")]
    assert nodes[0]["health"] == f"127.0.0.1:{target.cluster.serve.port} says 200"
    assert LogsCommand().parse_execute(["worker"]) == 0
    assert "worker | tandem: ray is up" in capsys.readouterr().out.splitlines()
    assert LogsCommand().parse_execute(["wroker"]) == 3
    assert "did you mean 'worker'" in capsys.readouterr().err
    assert DownCommand().parse_execute([]) == 0
    assert _left(target.name) == []
    assert PsCommand().parse_execute([]) == 1
    assert "absent" in capsys.readouterr().out
    assert DownCommand().parse_execute([]) == 0
    assert capsys.readouterr().out == f"{target.name}: nothing runs\n"


def test_the_reference_comes_from_one_rank_that_is_gone_afterwards(target: Target, tmp_path: Path) -> None:
    completion = deploy.complete_on_one_rank(target, tmp_path / "logs", NullLog())
    assert completion == Completion(prompt_tokens=[1], tokens=[7], logprobs=[-1.0], text="ba")
    assert _left(f"{target.name}-reference") == []
