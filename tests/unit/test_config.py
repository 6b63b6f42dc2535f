"""A mistake in the configuration is named by file, line and key, with the nearest right name."""

from pathlib import Path

import pytest

from pipeline import config
from pipeline.errors import ConfigError

PIPELINE = """\
default: local
registry: {address: "127.0.0.1:5000"}
clusters:
  local:
    image: cpu
    executor: ray
    accelerators: 1
    nodes:
      - name: head
      - name: worker
    serve:
      port: 8000
      args: [--max-model-len, "256"]
      env: {A: "1"}
"""
IMAGE = """\
base: {debian: trixie, packages: [bash]}
python:
  version: "3.13"
  requirements: [ray]
files: files
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "dockerfiles" / "cpu"
    (folder / "files").mkdir(parents=True)
    (folder / "image.yaml").write_text(IMAGE)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def test_what_is_written_is_what_is_read(root: Path) -> None:
    found = config.load(root)
    assert [node.name for node in found.cluster("local").nodes] == ["head", "worker"]
    assert found.images["cpu"].python.version == "3.13"
    assert found.images["cpu"].platform == "linux/arm64"


@pytest.mark.parametrize(
    ("file", "right", "wrong", "where", "hint"),
    [
        ("pipeline.yaml", "executor: ray", "executer: ray", "pipeline.yaml:6: clusters.local.executer", "'executor'"),
        ("pipeline.yaml", "executor: ray", "executor: mp", "pipeline.yaml:6: clusters.local.executor", ""),
        ("pipeline.yaml", "accelerators: 1", "accelerators: 0", "pipeline.yaml:7: clusters.local.accelerators", ""),
        ("pipeline.yaml", "accelerators: 1", "accelerators: true", "True is not a whole number", ""),
        ("pipeline.yaml", "5000\"}", "5000\", serve: yes}", "'yes' is not true or false", ""),
        ("pipeline.yaml", "5000\"}", "5000\", records: on}", "'on' does not fit ^(off|pull|push)$", ""),
        ("pipeline.yaml", "default: local", "default: lokal", "pipeline.yaml:1: default", "'local'"),
        ("pipeline.yaml", "image: cpu", "image: cpo", "pipeline.yaml:5: clusters.local.image", "'cpu'"),
        ("pipeline.yaml", "name: worker", "name: head", "two nodes are called 'head'", ""),
        ("pipeline.yaml", "port: 8000", "port: 80000", "pipeline.yaml:12: clusters.local.serve.port", ""),
        ("pipeline.yaml", '"256"', "256", "pipeline.yaml:13: clusters.local.serve.args[1]", "quotes"),
        ("pipeline.yaml", '{A: "1"}', "{A: 1}", "pipeline.yaml:14: clusters.local.serve.env.A", "quotes"),
        ("pipeline.yaml", "127.0.0.1:5000", "127.0.0.1", "registry.address", "127.0.0.1:5000"),
        ("pipeline.yaml", "image: cpu", "image: cpu\n    image: cpu", "pipeline.yaml:6: the key 'image'", ""),
        ("pipeline.yaml", "default: local", "default: [local", "not valid YAML", ""),
        ("pipeline.yaml", PIPELINE, "", "the key 'default' is missing", ""),
        ("pipeline.yaml", PIPELINE, "- a list", "is not a mapping", ""),
        ("dockerfiles/cpu/image.yaml", '"3.13"', "3.13", "dockerfiles/cpu/image.yaml:3: python.version", "quotes"),
        ("dockerfiles/cpu/image.yaml", "debian:", "debain:", "dockerfiles/cpu/image.yaml:1: base.debain", "'debian'"),
        ("dockerfiles/cpu/image.yaml", "files: files", "files: fils", "cpu/image.yaml:5: files", "dockerfiles/cpu/"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(root: Path, file: str, right: str, wrong: str, where: str, hint: str) -> None:
    text = (root / file).read_text()
    assert right in text
    (root / file).write_text(text.replace(right, wrong, 1))
    with pytest.raises(ConfigError) as caught:
        config.load(root)
    assert where in str(caught.value)
    assert hint in caught.value.hint


def test_the_local_file_is_laid_over_and_its_mistakes_are_its_own(root: Path) -> None:
    (root / "pipeline.local.yaml").write_text("clusters: {local: {serve: {port: 9000}}}\n")
    found = config.load(root)
    assert found.cluster("local").serve.port == 9000
    assert found.cluster("local").serve.args == ("--max-model-len", "256")
    (root / "pipeline.local.yaml").write_text("clusters:\n  local:\n    serve: {prt: 9000}\n")
    with pytest.raises(ConfigError, match=r"pipeline\.local\.yaml:3: clusters\.local\.serve\.prt"):
        config.load(root)


def test_a_missing_file_is_named(root: Path) -> None:
    (root / "pipeline.yaml").unlink()
    with pytest.raises(ConfigError, match=r"pipeline\.yaml: cannot be read"):
        config.load(root)


def test_an_unknown_cluster_gets_the_nearest_name(root: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(root).cluster("locale")
    assert "'local'" in caught.value.hint


def test_the_committed_schemas_are_those_of_the_models() -> None:
    here = Path(__file__).parents[2] / "schemas"
    assert {name: (here / name).read_text() for name in config.schemas()} == dict(config.schemas())


def test_the_project_s_own_configuration_is_right() -> None:
    found = config.load(Path(__file__).parents[2])
    assert found.pipeline.default in found.pipeline.clusters


@pytest.mark.parametrize("word", ["off", "pull", "push"])
def test_off_is_a_word_and_not_a_boolean(root: Path, word: str) -> None:
    text = PIPELINE.replace('5000"}', f'5000", records: {word}, serve: true}}')
    (root / "pipeline.yaml").write_text(text)
    registry = config.load(root).pipeline.registry
    assert (registry.records, registry.serve) == (word, True)
