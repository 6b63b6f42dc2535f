"""What the service is asked, with its key if it wants one, and what is said if it does not answer as it should."""

import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pipeline.cluster import deploy, service_api
from pipeline.cluster.nodes import ContainerState, Nodes
from pipeline.cluster.plan import NodePlan, plan_nodes
from pipeline.cluster.service_api import ServiceError, api_keys
from pipeline.cluster.start import ClusterStart
from pipeline.cluster.steps import Report, Step, StepFailedError
from pipeline.config.models import Cluster, Node, Serve
from pipeline.core.errors import ConfigError
from pipeline.core.log import NullLog

KEY = "geheim-1"
COMPLETION = {
    "choices": [
        {"text": "ba", "token_ids": [3], "prompt_token_ids": [1], "logprobs": {"token_logprobs": [-0.5]}},
    ]
}
MODELS = {"data": [{"id": "tiny"}]}


class Service(HTTPServer):
    """As vLLM with a key; `body` is what it answers instead, and `silence` the seconds before it does."""

    key = ""
    body = b""
    silence = 0.0

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Service

    def do_GET(self) -> None:
        self._answer(MODELS)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(COMPLETION)

    def _answer(self, said: object) -> None:
        key = self.server.key
        right = not key or self.headers.get("Authorization") == f"Bearer {key}"
        body = self.server.body or json.dumps(said if right else {"error": f"not {key}"}).encode()
        time.sleep(self.server.silence)
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def service(key: str = "", body: bytes = b"", *, silence: float = 0.0) -> Iterator[int]:
    """The port of a service that runs in a thread."""
    with Service(("127.0.0.1", 0), Handler) as server:
        server.key, server.body, server.silence = key, body, silence
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.port
        finally:
            server.shutdown()
            thread.join()


def cluster(serve: Serve) -> Cluster:
    return Cluster(image="cpu", nodes=(Node(name="head"),), serve=serve)


class Boxed(Nodes):
    """One node that no engine has; what Ray wrote in it is one file."""

    def __init__(self, serve: Serve, wrote: str = "") -> None:
        image = "registry:5000/cpu@sha256:" + "a" * 64
        super().__init__(plan_nodes("x", cluster(serve), image, "linux/arm64", model=None), {})
        self.wrote = wrote

    def fetch_tar(self, plan: NodePlan, path: str) -> bytes | None:
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            entry = tarfile.TarInfo("logs/gcs_server.out")
            entry.size = len(self.wrote.encode())
            tar.addfile(entry, io.BytesIO(self.wrote.encode()))
        return raw.getvalue()


GIVEN = [
    Serve(args=("--dtype", "float32", "--api-key", KEY, "--seed", "1")),
    Serve(args=("--api-key", KEY, "geheim-2")),
    Serve(args=(f"--api-key={KEY}", "--seed", "1")),
    Serve(args=("--api_key", KEY)),
    Serve(args=("--api-key", "old", "--api-key", KEY)),
    Serve(env={"VLLM_API_KEY": KEY}),
    Serve(args=("--api-key", KEY), env={"VLLM_API_KEY": "geheim-3"}),
    Serve(args=("--api-key",), env={"VLLM_API_KEY": KEY}),
]


@pytest.mark.parametrize("serve", GIVEN)
def test_the_key_goes_with_every_request_to_a_service_that_asks_for_one(serve: Serve, tmp_path: Path) -> None:
    with service(KEY) as port:
        assert service_api.list_models(port, serve) == ["tiny"]
        assert deploy.complete(Boxed(serve), port, serve, tmp_path, NullLog()).text == "ba"


def test_all_of_several_keys_are_hidden_and_values_of_other_options_are_not() -> None:
    serve = Serve(args=("--api-key", "geheim", "geheim-2", "--seed", "1"))
    assert api_keys(serve) == ("geheim", "geheim-2")
    assert service_api.hide_keys("api_key: ['geheim', 'geheim-2'], seed: 1", serve) == (
        "api_key: ['***', '***'], seed: 1"
    )


@pytest.mark.parametrize("serve", [Serve(), Serve(args=("--seed", "1")), Serve(env={"VLLM_API_KEY": ""})])
def test_without_a_key_none_is_sent_and_nothing_is_hidden(serve: Serve) -> None:
    assert service_api.authorization(serve) == {}
    assert service_api.hide_keys("abc", serve) == "abc"


@pytest.mark.parametrize("key", ["two\r\nlines", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_before_anything_starts_and_not_shown(key: str) -> None:
    target = deploy.DeployTarget(
        name="x",
        cluster=cluster(Serve(args=("--api-key", key))),
        image=deploy.PushedImage("r", "cpu", "sha256:" + "a" * 64),
        platform="linux/arm64",
        model=None,
    )
    with pytest.raises(ConfigError, match="no HTTP header can carry") as refused:
        deploy.plan_target(target)
    assert key not in str(refused.value)


def refused(port: int, serve: Serve, tmp_path: Path) -> str:
    """What the step `model` fails with."""
    with pytest.raises(deploy.DeployError) as caught:
        deploy.check_model_listed(Boxed(serve), port, serve, Report(), tmp_path, NullLog())
    assert caught.value.step == "model"
    return str(caught.value)


def test_a_service_that_wants_a_key_that_is_not_configured_is_named_as_such(tmp_path: Path) -> None:
    with service(KEY) as port:
        said = refused(port, Serve(), tmp_path)
        assert "the service answers 401 to /v1/models" in said
        assert "an API key that neither serve.args (--api-key) nor serve.env (VLLM_API_KEY) gives" in said


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 1}', b'{"data": [{}]}'])
def test_an_answer_that_lists_no_models_is_shown(body: bytes, tmp_path: Path) -> None:
    with service(body=body) as port:
        assert f"/v1/models lists no models: {body.decode()}" in refused(port, Serve(), tmp_path)


def test_a_service_that_lists_another_model_is_refused_by_both_names(tmp_path: Path) -> None:
    with service() as port:
        assert "/v1/models lists ['tiny'], not big" in refused(port, Serve(name="big"), tmp_path)


def test_a_service_that_is_gone_is_a_failure_with_the_cause_of_the_logs(tmp_path: Path) -> None:
    (tmp_path / "head.log").write_text("RuntimeError: Engine core initialization failed.")
    with service() as port:
        pass
    said = refused(port, Serve(), tmp_path)
    assert "/v1/models is not answered: " in said
    assert "the engine's core ended while it started" in said


def test_a_service_that_stalls_is_a_failure() -> None:
    with service(silence=0.5) as port, pytest.raises(ServiceError, match="/v1/models is not answered: timed out"):
        service_api.list_models(port, Serve(), timeout_s=0.1)


def test_a_key_in_an_answer_of_the_service_is_hidden(tmp_path: Path) -> None:
    serve = Serve(args=("--api-key", "wrong"))
    with service("right", b"the key wrong is not right") as port:
        assert "the key *** is not right" in refused(port, serve, tmp_path)
        with pytest.raises(deploy.DeployError, match=r"the key \*\*\* is not right"):
            deploy.complete(Boxed(serve), port, serve, tmp_path, NullLog())


def test_neither_lines_nor_files_of_the_logs_contain_the_key(tmp_path: Path) -> None:
    serve = Serve(args=("--api-key", KEY))
    nodes, log = Boxed(serve, f"entrypoint: vllm serve --api-key {KEY}"), NullLog()
    start = ClusterStart(nodes, cluster(serve), Report(), tmp_path, log)
    start._output.add("head", f"non-default args: {{'api_key': ['{KEY}']}}")
    start.collect_logs()
    files = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "head.log": "non-default args: {'api_key': ['***']}\n",
        "gcs_server.out": "entrypoint: vllm serve --api-key ***",
    }
    assert log.lines == ["[head] non-default args: {'api_key': ['***']}"]


def test_a_key_in_the_last_lines_of_a_node_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Serve(args=("--api-key", KEY))
    nodes = Boxed(serve)
    ended = ContainerState(
        container="tandem-x-head", node="head", status="exited", exit_code=1, oom_killed=False, started="", labels={},
        published=None,
    )  # fmt: skip
    monkeypatch.setattr(nodes, "state", lambda plan: ended)
    start = ClusterStart(nodes, cluster(serve), Report(), tmp_path, NullLog())
    start._output.add("head", f"vllm: error: unrecognized arguments: {KEY}")
    with pytest.raises(StepFailedError, match=r"unrecognized arguments: \*\*\*"):
        start._refuse_ended_containers(Step.ENGINE)
