"""Shortcuts that users tried instead of building an image: each is made on a real image, and refused with its reason.

The images are of this machine's own platform. vLLM in them is a few modules, its registry built like the real one:
dictionaries of names, and classes that are imported only on demand.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient
from docker.errors import APIError

from pipeline.config.models import CombinedImage, DebianBase, DebianImage, Image, ImageBase, Python, Smoke
from pipeline.core import platforms
from pipeline.core.log import NullLog
from pipeline.smoke.report import SmokeError
from pipeline.smoke.smoke import smoke
from tests.docker import smoke_image
from tests.docker.smoke_image import SITE, dist_info

REPOSITORY = "tandem-test-shortcuts"
MODELS = f"{SITE}/vllm/model_executor/models"
MAIN, HEADS = "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeMTP"
LOCKED = {"torch": "2.10.0", "vllm": "0.14.0", "transformers": "4.57.0", "ray": "2.60.0", "own-plugin": "1"}
QWEN = {f"{MODELS}/qwen3_5.py": f"class {MAIN}:\n    pass\n", f"{MODELS}/qwen3_5_mtp.py": f"class {HEADS}:\n    pass\n"}

LAZY = '''
import importlib
from dataclasses import dataclass, field

_VLLM_MODELS = {**_MULTIMODAL_MODELS, **_SPECULATIVE_DECODING_MODELS}

def _run_in_subprocess(function):
    raise RuntimeError("another process would import torch and vLLM again")

@dataclass(frozen=True)
class _Lazy:
    module: str
    name: str
    def inspect_model_cls(self):
        return _run_in_subprocess(lambda: self.load_model_cls().__name__)
    def load_model_cls(self):
        return getattr(importlib.import_module(f"vllm.model_executor.models.{self.module}"), self.name)

@dataclass
class _Registry:
    models: dict = field(default_factory=dict)
    def get_supported_archs(self):
        return self.models.keys()

ModelRegistry = _Registry({arch: _Lazy(module, name) for arch, (module, name) in _VLLM_MODELS.items()})
'''  # fmt: skip
Made = Callable[..., str]


def vllm(version: str, models: dict[str, str], files: dict[str, str]) -> dict[str, str]:
    """A vLLM as pip installs it, with the hash of every file; `models` are architectures and their modules."""
    listed = {arch: (module, arch) for arch, module in models.items()}
    text = f"_MULTIMODAL_MODELS = {listed!r}\n_SPECULATIVE_DECODING_MODELS = {{}}\n{LAZY}"
    files = {f"{MODELS}/registry.py": text, **files}
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path.removeprefix(f'{SITE}/')},sha256={digest},{len(text.encode())}\n")
    record = {f"{SITE}/vllm-{version}.dist-info/RECORD": "".join(rows)}
    return {**files, **dist_info("vllm", version, ["transformers<5,>=4.56.0"]), **record}


@pytest.fixture(scope="module")
def old(client: DockerClient) -> Iterator[str]:
    """An image that forms a cluster and does not know the model: vLLM 0.14.0 with transformers 4.57.0."""
    good, name = f"{REPOSITORY}:good", f"{REPOSITORY}:old"
    smoke_image.load(client, good)
    files = {**vllm("0.14.0", {}, {}), **dist_info("transformers", "4.57.0")}
    command = f"rm -r /{SITE}/vllm*.19.1*"
    try:
        yield smoke_image.changed(client, good, name, command, [], files)
    finally:
        for reference in (name, good):
            client.images.remove(reference, force=True)


@pytest.fixture
def made(client: DockerClient, old: str) -> Iterator[Made]:
    """An image from the old one: files added, a shell command run in it, Dockerfile instructions."""
    references: list[str] = []

    def made(files: dict[str, str], command: str = "true", *instructions: str) -> str:
        references.append(f"{REPOSITORY}:changed-{len(references)}")
        return smoke_image.changed(client, old, references[-1], command, instructions, files)

    yield made
    for reference in references:
        client.images.remove(reference, force=True)


def debian(client: DockerClient, **asked: Any) -> DebianImage:
    return DebianImage(
        platform=platform(client),
        base=DebianBase(debian="trixie", packages=("bash",)),
        python=Python(version="3.12", requirements=("vllm",)),
        smoke=Smoke(**{"ray": False, "launcher": False, **asked}),
    )


def platform(client: DockerClient) -> str:
    machine = str(client.info()["Architecture"])
    return f"linux/{platforms.architecture_of(machine)}"


def refused(reference: str, image: Image, check: str, inside: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The words of the check that refuses the image; its name is in the first line of the message."""
    with pytest.raises(SmokeError) as caught:
        smoke(reference, "x", image, LOCKED, Path("/"), NullLog(), inside)
    assert check in str(caught.value).splitlines()[0]
    found = caught.value.report["checks"][check]
    assert found["outcome"] == "failed"
    return tuple(found["details"])


def accepted(reference: str, image: Image, inside: tuple[str, ...] = ()) -> dict[str, list[str]]:
    smoked = smoke(reference, "x", image, LOCKED, Path("/"), NullLog(), inside)
    return {name: check["details"] for name, check in smoked.report["checks"].items()}


def test_a_cleared_entrypoint_without_the_script_is_refused_in_the_words_that_a_launcher_would_see(
    client: DockerClient, made: Made
) -> None:
    cleared = made({}, "rm /workspace/vllm/run-cluster-node.sh", "ENTRYPOINT []")
    launcher = client.containers.create(cleared, ["./run-cluster-node.sh", "--role", "head"], entrypoint=[""])
    try:
        with pytest.raises(APIError, match=r"stat \./run-cluster-node\.sh: no such file or directory"):
            launcher.start()
    finally:
        launcher.remove(force=True, v=True)
    (detail,) = refused(cleared, debian(client, launcher=True), "launcher")
    assert "`stat ./run-cluster-node.sh: no such file or directory`" in detail
    assert "every node run ./run-cluster-node.sh in the working folder /workspace/vllm, and it does not exist" in detail
    assert "a cleared entrypoint brings no script: build an image on top of this one (`base: {image: …}`)" in detail


def test_files_of_a_model_over_an_old_vllm_are_refused_as_not_registered(client: DockerClient, made: Made) -> None:
    (detail, heads) = refused(made(QWEN), debian(client, architectures=(MAIN, HEADS)), "registry")
    assert f"{MAIN} is not registered, although /{MODELS}/qwen3_5.py defines it" in detail
    assert f"vLLM looks in /{MODELS}/registry.py, a dictionary from architecture names to modules (0 entries)" in detail
    assert "a file that is not registered there is not a model" in detail
    assert "this image has vLLM 0.14.0, which is older than the model: use vLLM 0.17 or later" in detail
    assert "or a base image whose vLLM lists it (`base: {image: …}`)" in detail
    assert f"{HEADS} is not registered, although /{MODELS}/qwen3_5_mtp.py defines it" in heads


def test_an_image_older_than_the_model_is_refused_with_the_version_it_has_and_the_one_it_needs(
    client: DockerClient, old: str
) -> None:
    (detail,) = refused(old, debian(client, architectures=(MAIN, HEADS)), "registry")
    assert detail.startswith(f"none of the wanted {MAIN}, {HEADS} is registered, and no file of vLLM defines it")
    assert "this image has vLLM 0.14.0, which is older than the model: use vLLM 0.17 or later" in detail


def test_heads_that_are_missing_beside_the_main_model_are_refused_alone(client: DockerClient, made: Made) -> None:
    without = made(vllm("0.14.0", {MAIN: "qwen3_5"}, QWEN))
    (detail,) = refused(without, debian(client, architectures=(MAIN, HEADS)), "registry")
    assert detail.startswith(f"{HEADS} is not registered, although /{MODELS}/qwen3_5_mtp.py defines it; {MAIN} is:")
    assert "speculative decoding with its MTP heads will not work" in detail


def test_an_architecture_that_is_listed_and_does_not_import_is_refused(client: DockerClient, made: Made) -> None:
    broken = {f"{MODELS}/qwen3_5.py": "from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig\n"}
    listed = made(vllm("0.14.0", {MAIN: "qwen3_5"}, broken))
    (detail,) = refused(listed, debian(client, architectures=(MAIN,)), "registry")
    assert detail == (
        f"{MAIN} is listed by vLLM's registry, but its class does not load: ModuleNotFoundError:"
        " No module named 'transformers'"
    )


def test_transformers_upgraded_underneath_vllm_is_refused_unless_the_base_image_has_it(
    client: DockerClient, made: Made
) -> None:
    upgraded = made(dist_info("transformers", "5.3.0"), f"rm -r /{SITE}/transformers-4.57.0.dist-info")
    line = "vllm 0.14.0 wants transformers>=4.56.0,<5, but transformers 5.3.0 is there"
    (detail,) = refused(upgraded, debian(client), "consistency")
    assert detail.startswith(f"{line}: pip accepts that, and it fails at run time; let `lock` choose both")
    below = CombinedImage(
        platform=platform(client),
        base=ImageBase(image="vllm-node:1"),
        smoke=Smoke(ray=False, launcher=False),
    )
    inside = {**LOCKED, "transformers": "5.3.0"}
    smoked = smoke(upgraded, "x", below, inside, Path("/"), NullLog(), ("vllm", "transformers"))
    assert smoked.report["checks"]["consistency"]["details"][1:] == [f"as the base image came: {line}"]


def test_a_registry_patched_underneath_is_refused_and_an_editable_vllm_without_hashes_is_not(
    client: DockerClient, made: Made
) -> None:
    patch = {path: text for path, text in vllm("0.14.0", {MAIN: "qwen3_5"}, QWEN).items() if "RECORD" not in path}
    record = f"/{SITE}/vllm-0.14.0.dist-info/RECORD"
    both = made(patch, f"printf 'vllm/model_executor/models/gone.py,sha256=AAAA,3\n' >> {record}")
    patched, gone = refused(both, debian(client, architectures=(MAIN,)), "consistency")
    assert patched.startswith(f"patched: /{MODELS}/registry.py differs from what vllm 0.14.0 installed: ")
    assert "use a version that has the change" in patched
    assert gone.startswith(f"patched: /{MODELS}/gone.py of vllm 0.14.0 is gone: ")
    editable = made(patch, f"echo '__editable__.vllm.pth,,' > {record}")
    found = accepted(editable, debian(client, architectures=(MAIN,)))
    assert found["registry"] == [f"listed and loaded: {MAIN}"]


def test_a_ray_without_the_packages_of_its_dashboard_is_refused(client: DockerClient, made: Made) -> None:
    bare = made({f"{SITE}/ray/dashboard/optional_deps.py": "import aiohttp_cors\n"})
    (detail,) = refused(bare, debian(client, launcher=True), "launcher")
    assert detail == (
        "Ray's dashboard is missing (ModuleNotFoundError: No module named 'aiohttp_cors'): require ray[default];"
        " ray[cgraph] does not bring its packages"
    )


def test_another_ray_in_front_of_the_one_that_python_imports_is_refused(client: DockerClient, made: Made) -> None:
    speaks = "#!/bin/bash\n[ \"$1\" = --version ] && echo 'ray, version {}'\n"
    two = made({"usr/local/bin/ray": speaks.format("2.44.0"), "usr/bin/ray": speaks.format("2.60.0")})
    (detail,) = refused(two, debian(client, launcher=True), "launcher")
    assert "2 `ray` on PATH, /usr/local/bin/ray (2.44.0), /usr/bin/ray (2.60.0)" in detail
    assert "/usr/local/bin/ray comes first, but Python" in detail
    assert "imports Ray 2.60.0, and a cluster of one is not joined by the other (`Version mismatch`)" in detail
    files = {"usr/bin/ray": speaks.format("2.60.0"), "opt/old/ray": speaks.format("2.44.0")}
    right = made(files, "true", "ENV PATH=/usr/bin:/opt/old")
    assert "launcher" in accepted(right, debian(client, launcher=True))
