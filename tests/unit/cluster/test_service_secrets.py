"""A service's secrets are in no text that the engine shows of its containers, and reach vLLM all the same."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from pipeline.cluster.nodes import pack_files, unpack_tar
from pipeline.cluster.plan import SECRETS_FILE, plan_nodes
from pipeline.cluster.service_api import api_keys
from pipeline.cluster.service_secrets import part_secrets
from pipeline.config.models import Cluster, Node, Serve
from pipeline.core import redact
from pipeline.probes import serve_node

LOCAL = Cluster(image="cpu", nodes=(Node(name="head"), Node(name="worker")))
SECRET = "geheim-1"  # it is the test's own

SERVICES = [
    Serve(args=("--dtype", "float32", "--api-key", SECRET, "--seed", "1")),
    Serve(args=(f"--api-key={SECRET}",)),
    Serve(args=("--api_key", SECRET), env={"VLLM_API_KEY": "other"}),
    Serve(args=("--api-key", SECRET, "geheim-2", "-O0")),
    Serve(args=("--hf-token", SECRET)),
    Serve(args=(f"--otlp-traces-endpoint=http://me:{SECRET}@host",)),
    Serve(env={"VLLM_API_KEY": SECRET}),
    Serve(env={"DB_PASSWD": SECRET, "HF_TOKEN": SECRET}),
    Serve(env={"HTTPS_PROXY": f"http://me:{SECRET}@proxy:3128"}),
]


@pytest.mark.parametrize("executor", ["ray", "none"])
@pytest.mark.parametrize("serve", SERVICES)
def test_the_engine_shows_no_secret(serve: Serve, executor: str) -> None:
    cluster = replace(LOCAL, serve=serve, executor=executor)
    for plan in plan_nodes("local", cluster, "host/cpu@sha256:0", "linux/arm64", model=None):
        for text in (json.dumps(plan.command), json.dumps(dict(plan.env)), json.dumps(plan.labels), repr(plan)):
            assert "geheim" not in text


@pytest.mark.parametrize("serve", SERVICES)
def test_the_args_label_tells_of_a_change_of_a_secret(serve: Serve) -> None:
    other = replace(
        serve,
        args=tuple(word.replace(SECRET, "geheim-9") for word in serve.args),
        env={name: value.replace(SECRET, "geheim-9") for name, value in serve.env.items()},
    )
    one, same, changed = (
        plan_nodes("local", replace(LOCAL, serve=each), "host/cpu@sha256:0", "linux/arm64", model=None)[0].args
        for each in (serve, serve, other)
    )
    assert one == same
    assert one != changed


@pytest.mark.parametrize("serve", SERVICES)
def test_vllm_gets_what_was_configured(serve: Serve) -> None:
    public, secrets = part_secrets(serve)
    told = json.loads(secrets.content)
    args = serve_node.filled(list(public.args), told["words"])
    assert api_keys(replace(serve, args=tuple(args), env={**public.env, **told["env"]})) == api_keys(serve)
    if "--api-key" not in " ".join(serve.args).replace("_", "-"):
        assert (tuple(args), {**public.env, **told["env"]}) == (serve.args, dict(serve.env))


def test_one_api_key_is_on_no_command_line_even_inside_the_node() -> None:
    public, secrets = part_secrets(Serve(args=("--dtype", "float32", "--api-key", SECRET, "--seed", "1")))
    assert public.args == ("--dtype", "float32", "--seed", "1")
    assert secrets.env == {"VLLM_API_KEY": SECRET}
    assert secrets.words == {}


def test_what_is_no_secret_stays_where_it_was() -> None:
    serve = Serve(args=("--max-num-batched-tokens", "256", "--tokenizer", "/t"), env={"OMP_NUM_THREADS": "7"})
    public, secrets = part_secrets(serve)
    assert public == serve
    assert json.loads(secrets.content) == {"env": {}, "words": {}}


def test_only_root_can_read_the_secrets() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_files({SECRETS_FILE: b"{}", "go": b""}))) as archive:
        modes = {member.name.rpartition("/")[2]: member.mode for member in archive if member.isfile()}
    assert modes == {"serve.json": 0o600, "go": 0o644}


def test_files_of_a_node_are_written_without_secrets(tmp_path: Path) -> None:
    redact.register(SECRET)
    unpack_tar(pack_files({"log": b"\xff key geheim-1\n"}), tmp_path)
    assert (tmp_path / "log").read_bytes() == b"\xff key ***\n"
