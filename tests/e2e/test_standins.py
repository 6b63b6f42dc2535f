"""The stand-ins are what they stand for: each has the traits, and the troubles, of the images that people publish."""

import json
import subprocess
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from pipeline.core.log import NullLog
from pipeline.host import engine
from tests import standins

pytestmark = pytest.mark.timeout(1800)
QWEN = {"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MTP", "Qwen3_5MoeMTP"}
LOOK = """\
import importlib.metadata as metadata, importlib.util as util, json
from vllm import ModelRegistry, __file__, __version__
print(json.dumps({
    "vllm": metadata.version("vllm"), "says": __version__, "file": __file__,
    "transformers": metadata.version("transformers"), "ray": util.find_spec("ray") is not None,
    "architectures": sorted(ModelRegistry.get_supported_archs()),
}))
"""


@pytest.fixture(scope="module")
def hellohal() -> str:
    return standins.made(standins.HELLOHAL, NullLog())


@pytest.fixture(scope="module")
def vllm_node() -> str:
    return standins.made(standins.VLLM_NODE, NullLog())


@pytest.fixture
def name() -> Iterator[str]:
    """A container's name; whatever has it goes."""
    container = f"tandem-test-{uuid4().hex[:8]}"
    yield container
    subprocess.run(["docker", "rm", "--force", "--volumes", container], capture_output=True, check=False)


def ran(image: str, *words: str, entrypoint: str) -> subprocess.CompletedProcess[str]:
    options = ["--rm", "--network", "none", "--platform", "linux/arm64", "--entrypoint", entrypoint]
    return subprocess.run(["docker", "run", *options, image, *words], capture_output=True, text=True, check=False)


def look(image: str, version: str, file: str, *, ray: bool) -> set[str]:
    """Import vLLM in an image, of that version and from that file; returns the architectures that it lists."""
    answer = ran(image, "-c", LOOK, entrypoint="python3")
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout.splitlines()[-1])
    architectures = set(found.pop("architectures"))
    assert found == {"vllm": version, "says": version, "file": file, "transformers": "4.57.6", "ray": ray}
    return architectures


def test_hellohal_knows_the_model_and_has_no_ray(hellohal: str) -> None:
    found = look(hellohal, "0.17.1rc1.dev25+cpu", "/opt/vllm/vllm/__init__.py", ray=False)
    assert found >= QWEN


def test_hellohal_has_no_launcher_s_files(hellohal: str) -> None:
    answer = ran(hellohal, "-c", "pwd; ls -d /workspace; ls run-cluster-node.sh", entrypoint="bash")
    assert answer.stdout == "/app\n"
    assert answer.returncode != 0


def test_hellohal_s_entrypoint_does_not_look_at_the_command(hellohal: str, name: str) -> None:
    options = ["--detach", "--name", name, "--network", "none", "--platform", "linux/arm64"]
    subprocess.run(["docker", "run", *options, hellohal, "echo", "heard"], capture_output=True, check=True)
    said, end = "", time.monotonic() + 120
    while "entrypoint:" not in said and time.monotonic() < end:
        said = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=True).stdout
        time.sleep(0.5)
    assert "--model /models/default" in said
    assert "heard" not in said


def test_vllm_node_has_ray_and_does_not_know_the_model(vllm_node: str) -> None:
    found = look(vllm_node, "0.14.1+cpu", "/usr/local/lib/python3.11/dist-packages/vllm/__init__.py", ray=True)
    assert "Qwen3ForCausalLM" in found
    assert not QWEN & found


def test_vllm_node_has_the_launcher_s_script_and_no_entrypoint(vllm_node: str) -> None:
    answer = ran(vllm_node, "-c", "pwd; ./run-cluster-node.sh --role nonsense", entrypoint="bash")
    assert answer.stdout == "/workspace/vllm\n"
    assert "run-cluster-node.sh" in answer.stderr
    assert not engine.find_image("local", vllm_node)["Config"]["Entrypoint"]


def test_both_share_their_base(hellohal: str, vllm_node: str) -> None:
    one, other = (engine.find_image("local", image)["RootFS"]["Layers"] for image in (hellohal, vllm_node))
    assert one[0] == other[0]
    assert len(set(one) & set(other)) > 5
