"""`doit advise` on two small images of this machine's platform: read, asked in a container, judged, and written."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import loader
from pipeline.core import platforms
from pipeline.host import engine
from tests.docker import smoke_image
from tests.docker.smoke_image import SITE, dist_info, tar_of
from tests.ports import free_port

pytestmark = pytest.mark.timeout(600)
REPOSITORY = Path(__file__).parents[2]
PLATFORM = f"linux/{platforms.this_architecture()}"
# As vLLM's own: a table in the source, and a registry that is made of it and that plug-ins may add to.
REGISTRY = """
from importlib import import_module
_TEXT_GENERATION_MODELS = {TABLE}
_VLLM_MODELS = {{**_TEXT_GENERATION_MODELS}}
class Registered:
    def __init__(self, module, name):
        self.module, self.name = module, name
    def inspect_model_cls(self):
        return self.load_model_cls()
    def load_model_cls(self):
        return getattr(import_module(f"vllm.model_executor.models.{{self.module}}"), self.name)
class ModelRegistry:
    models = {{key: Registered(*value) for key, value in _VLLM_MODELS.items() if key != "Withdrawn"}}
    @classmethod
    def get_supported_archs(cls):
        return cls.models.keys()
"""
PLUGINS = """
def load_general_plugins():
    from vllm.model_executor.models.registry import ModelRegistry
    ModelRegistry.models["PluggedForCausalLM"] = None
"""
OLD = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}
NEW = {
    **OLD,
    "QwenForCausalLM": ("qwen", "QwenForCausalLM"),
    "QwenMTP": ("qwen_mtp", "QwenMTP"),
    "BrokenForCausalLM": ("broken", "BrokenForCausalLM"),
    "Withdrawn": ("llama", "LlamaForCausalLM"),
}
IMAGE = f"""\
# what the operator wrote
platform: {PLATFORM}   # this machine's
combine:
  model_from: MODEL
  cluster_from: CLUSTER  # the old one

# about the checks
smoke:
  architectures: [QwenForCausalLM]
"""


def vllm(version: str, table: dict[str, tuple[str, str]], *requires: str) -> dict[str, str]:
    """The files of a vLLM as far as anybody looks here."""
    models = f"{SITE}/vllm/model_executor/models"
    classes = {"llama": "LlamaForCausalLM", "qwen": "QwenForCausalLM", "qwen_mtp": "QwenMTP"}
    return {
        **dist_info("vllm", version, requires),
        f"{SITE}/vllm/__init__.py": "",
        f"{SITE}/vllm/plugins/__init__.py": PLUGINS,
        f"{models}/registry.py": REGISTRY.format(TABLE=table),
        **{f"{models}/{module}.py": f"class {name}:\n    pass\n" for module, name in classes.items()},
        f"{models}/broken.py": "import no_such_module\n",
    }


def load(reference: str, files: dict[str, str]) -> None:
    """Put an image with this machine's Python and some files into the engine."""
    system = {"etc/os-release": "ID=debian\n", "usr/bin/vllm": "#!/usr/bin/python3\n"}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for folder in ("tmp", "root", "proc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        smoke_image._tools(tar)
        smoke_image._python(tar)
    root = smoke_image._joined(raw.getvalue(), tar_of({**system, **files}))
    repository, _, tag = reference.rpartition(":")
    changes = [*(f"ENV {entry}" for entry in smoke_image.ENV), "WORKDIR /app"]
    engine.client().api.import_image_from_data(root, repository=repository, tag=tag, changes=changes)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[str, str]]:
    """An image that knows the model and has no Ray, and an old one that has Ray; no registry has them."""
    server = f"127.0.0.1:{free_port()}"
    model, cluster = f"{server}/tandem-test/advise-model:1", f"{server}/tandem-test/advise-cluster:1"
    load(
        model,
        {**vllm("0.17.1", NEW, "torch==2.10.0"), **dist_info("torch", "2.10.0"), **dist_info("transformers", "5.3.0")},
    )
    load(cluster, {
        **vllm("0.14.0", OLD, "torch==2.9.1", "transformers<5"),
        **dist_info("torch", "2.9.1"), **dist_info("transformers", "4.57.3"), **dist_info("ray", "2.53.0"),
    })  # fmt: skip
    try:
        yield model, cluster
    finally:
        for name in (model, cluster):
            engine.client().images.remove(name, force=True)


@pytest.fixture
def checkout(tmp_path: Path, pair: tuple[str, str]) -> Path:
    """A checkout with one image that says what to combine."""
    for name in ("pipeline", "dodo.py", "pyproject.toml"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    folder = tmp_path / "dockerfiles/both"
    folder.mkdir(parents=True)
    (folder.parent / "cpu").symlink_to(REPOSITORY / "dockerfiles/cpu")  # run-cluster-node.sh is there
    (folder / "image.yaml").write_text(IMAGE.replace("MODEL", pair[0]).replace("CLUSTER", pair[1]))
    (folder / "Dockerfile").write_bytes((REPOSITORY / "dockerfiles/gb10/Dockerfile").read_bytes())
    cluster = "{image: both, nodes: [{name: one}]}"
    (tmp_path / "pipeline.yaml").write_text(f"default: local\nclusters: {{local: {cluster}}}\n")
    return tmp_path


def doit(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "doit", "advise", *words]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(argv, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def answered(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_images_are_read_asked_judged_and_what_works_is_written(checkout: Path) -> None:
    file = checkout / "dockerfiles/both/image.yaml"
    before = file.read_text()
    done = doit(checkout, "both", "--json")
    said = answered(done)
    assert "asking the registry of vLLM 0.17.1" in done.stderr
    outcomes = {one["combination"]: one["outcome"] for one in said["combinations"]}
    assert outcomes.pop("on-top") == "works"
    assert outcomes == dict.fromkeys(("cluster-alone", "files", "transformers", "cleared", "in-place"), "no")
    entries = {row["architecture"]: (row["model"], row["cluster"]) for row in said["registry"]}
    loads = {"QwenForCausalLM": "qwen:QwenForCausalLM, loads", "QwenMTP": "qwen_mtp:QwenMTP, loads"}
    assert entries == {name: (entry, "-") for name, entry in loads.items()}
    assert said["differences"] == [
        "Withdrawn: in registry.py, but not listed as vLLM runs",
        "PluggedForCausalLM: registered at run time by a plug-in only",
    ]

    after = file.read_text()
    digest = said["model_from"]
    assert all(line in after.splitlines() for line in before.splitlines())
    assert after.index("cluster_from") < after.index(f"base:\n  image: {digest}") < after.index("# about the checks")
    written = loader.load_config(checkout).images["both"]
    assert written.smoke.architectures == ("QwenForCausalLM",)
    assert said["written"] == "base in dockerfiles/both/image.yaml"
    assert not engine.client().containers.list(all=True, filters={"ancestor": digest}, ignore_removed=True)

    again = answered(doit(checkout, "both", "--json"))
    assert again == {**said, "written": ""}
    assert file.read_text() == after


def test_a_second_run_reads_and_asks_nothing_again(checkout: Path) -> None:
    options = ("both", "--json", "--dry-run")
    first = doit(checkout, *options)
    second = doit(checkout, *options)
    assert answered(first) == answered(second)
    assert "reading" in first.stderr
    assert "reading" not in second.stderr
    assert "asking the registry" not in second.stderr


def test_an_existing_base_stays_unless_force_is_given(checkout: Path) -> None:
    file = checkout / "dockerfiles/both/image.yaml"
    other = "base: {image: elsewhere/one:2}  # mine\n"
    file.write_text(file.read_text() + other)
    done = doit(checkout, "both", "--quick")
    assert done.returncode == 3
    assert "works: Ray and the launcher on top of model_from" in done.stdout
    assert "base is elsewhere/one:2 already, and stays" in done.stderr
    assert file.read_text().endswith(other)
    said = answered(doit(checkout, "both", "--quick", "--force", "--json"))
    assert file.read_text().endswith(f"base: {{image: {said['model_from']}}}  # mine\n")


def test_a_model_that_is_listed_but_does_not_import_works_nowhere(checkout: Path) -> None:
    before = (checkout / "dockerfiles/both/image.yaml").read_text()
    done = doit(checkout, "both", "--architecture", "BrokenForCausalLM")
    assert done.returncode == 1
    assert (
        "BrokenForCausalLM: listed, but does not import: ModuleNotFoundError: No module named 'no_such_module'"
        in done.stdout
    )
    assert (checkout / "dockerfiles/both/image.yaml").read_text() == before
