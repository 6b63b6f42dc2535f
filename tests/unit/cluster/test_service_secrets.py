"""A service's secrets are in no text that the engine shows of its containers, and reach vLLM all the same."""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pipeline.cluster.nodes import Nodes, pack_files, unpack_tar
from pipeline.cluster.plan import SECRETS_FILE, TANDEM_FOLDER, NodePlan, plan_nodes
from pipeline.cluster.service_api import api_keys
from pipeline.cluster.service_secrets import part_secrets
from pipeline.config.models import Cluster, Node, Serve
from pipeline.core import redact
from pipeline.core.tar import archive_bytes
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


class Filled(Nodes):
    """Containers that no engine has, whose files are those of some plans."""

    def __init__(self, running: Sequence[NodePlan], fetched: list[str]) -> None:
        super().__init__(running, {})
        self.fetched = fetched

    def fetch_tar(self, plan: NodePlan, path: str) -> bytes | None:
        self.fetched.append(path)
        content = {running.container: running.secrets.content for running in self.plans}[plan.container]
        return archive_bytes({path.rpartition("/")[2]: (content, 0o600)}) if content else None


def plans(serve: Serve) -> tuple[NodePlan, ...]:
    return plan_nodes("local", replace(LOCAL, serve=serve), "host/cpu@sha256:0", "linux/arm64", model=None)


@pytest.mark.parametrize("serve", SERVICES)
def test_a_change_of_a_secret_is_told_from_what_the_container_holds(serve: Serve) -> None:
    other = replace(
        serve,
        args=tuple(word.replace(SECRET, "geheim-9") for word in serve.args),
        env={name: value.replace(SECRET, "geheim-9") for name, value in serve.env.items()},
    )
    running = Filled(plans(serve), [])
    assert all(running.holds_secrets(plan) for plan in plans(serve))
    assert not any(running.holds_secrets(plan) for plan in plans(other))
    assert set(running.fetched) == {f"{TANDEM_FOLDER}/{SECRETS_FILE}"}


@pytest.mark.parametrize("serve", SERVICES)
def test_no_label_depends_on_the_value_of_a_secret_or_on_the_user(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for value, home in ((SECRET, "a"), (SECRET, "b"), ("geheim-9", "b")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
        args = tuple(word.replace(SECRET, value) for word in serve.args)
        env = {name: text.replace(SECRET, value) for name, text in serve.env.items()}
        seen.append([plan.labels for plan in plans(replace(serve, args=args, env=env))])
        assert not (tmp_path / home).exists()
    assert seen[0] == seen[1] == seen[2]


def test_a_service_without_secrets_is_not_asked_for_them() -> None:
    running = Filled(plans(Serve()), [])
    assert all(running.holds_secrets(plan) for plan in running.plans)
    assert running.fetched == []
    assert not any(running.holds_secrets(plan) for plan in plans(SERVICES[0]))


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


@pytest.mark.parametrize("public", ["@secret-0@", "@secret-1@ @secret1-0@", "@secret-", "@secret1-0@@secret2-0@"])
def test_a_public_word_that_looks_like_a_mark_stays(public: str) -> None:
    args = ("--chat-template", public, "--hf-token", "@secret-0@geheim-1", "--other-token=@address@geheim-2")
    parted, secrets = part_secrets(Serve(args=args))
    assert "geheim" not in str(parted)
    told = json.loads(secrets.content)
    filled = serve_node.filled([*parted.args, "@address@"], {"@address@": "192.0.2.1", **told["words"]})
    assert filled == [*args, "192.0.2.1"]


def test_an_option_and_its_value_in_one_word_hide_the_value() -> None:
    parted, secrets = part_secrets(Serve(args=("--hf-token geheim-1",)))
    assert "geheim" not in str(parted)
    assert list(secrets.words.values()) == ["geheim-1"]
