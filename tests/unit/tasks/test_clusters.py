"""What a task says of its inputs: enough to tell that a secret changed, never the secret."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config.loader import Config
from pipeline.config.models import Cluster, DebianBase, DebianImage, Node, Pipeline, Python, Serve
from pipeline.core.errors import HostError
from pipeline.core.log import NullLog
from pipeline.graph.keys import canonical_json
from pipeline.graph.task import Run
from pipeline.tasks import clusters

IMAGE = DebianImage(
    base=DebianBase(debian="trixie", packages=("bash",)), python=Python(version="3.13", requirements=("ray",))
)


def _params(serve: Serve) -> list[str]:
    cluster = Cluster(image="cpu", nodes=(Node(name="head"),), serve=serve)
    config = Config(Path(), Pipeline(default="local", clusters={"local": cluster}), {"cpu": IMAGE})
    return [canonical_json(dict(task.inputs.params)) for task in clusters.cluster_tasks(config, "local", cluster)]


@pytest.mark.parametrize(
    "make",
    [
        lambda secret: Serve(env={"HF_TOKEN": secret}),
        lambda secret: Serve(env={"VLLM_API_KEY": secret}),
        lambda secret: Serve(env={"DB_PASSWD": secret}),
        lambda secret: Serve(env={"HTTPS_PROXY": f"http://me:{secret}@proxy:3128"}),
        lambda secret: Serve(env={"SOME_SETTING": secret}),
        lambda secret: Serve(args=("--api-key", secret, "--dtype", "float32")),
        lambda secret: Serve(args=("--api-key", "first", secret)),
        lambda secret: Serve(args=(f"--api-key={secret}",)),
        lambda secret: Serve(args=("--api_key", secret)),
        lambda secret: Serve(args=("--hf-token", secret)),
        lambda secret: Serve(args=("--override", f'{{"auth": {{"token": "{secret}"}}}}')),
        lambda secret: Serve(args=(f"--otlp-traces-endpoint=http://me:{secret}@host",)),
    ],
)
def test_a_secret_is_not_in_the_inputs_but_its_change_shows(make: Callable[[str], Serve]) -> None:
    one, other = _params(make("geheim-1")), _params(make("geheim-2"))
    assert len(one) == 2
    for params, changed in zip(one, other, strict=True):
        assert "geheim" not in params
        assert params != changed


def test_a_value_that_is_not_a_secret_is_shown_as_it_is() -> None:
    args = ("--max-num-batched-tokens", "256", "--api-key", "x", "--tokenizer", "/t", "-O0")
    for params in _params(Serve(args=args, env={"TOKENIZERS_PARALLELISM": "false"})):
        for shown in ("256", "/t", "-O0", "TOKENIZERS_PARALLELISM"):
            assert shown in params


def test_the_key_s_loss_only_means_that_secrets_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Serve(env={"HF_TOKEN": "geheim"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    one = _params(serve)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert _params(serve) != one
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    assert _params(serve) == one


def test_an_unreachable_kind_of_node_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    nodes = (Node(name="a", endpoint="ssh://me@spark-1", address="10.0.0.1"), Node(name="b", address="10.0.0.2"))
    cluster = Cluster(image="cpu", nodes=nodes)
    config = Config(tmp_path, Pipeline(default="far", clusters={"far": cluster}), {"cpu": IMAGE})
    (deploy,) = [task for task in clusters.cluster_tasks(config, "far", cluster) if task.name == "deploy:far"]
    with pytest.raises(HostError, match="'ssh://me@spark-1' is not supported here"):
        deploy.run(Run(log=NullLog(), upstream={}, fingerprint="", scratch=tmp_path))
