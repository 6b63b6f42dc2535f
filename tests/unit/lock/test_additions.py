"""What is refused before and after uv is asked for packages on top of an image."""

import pytest

from pipeline.core.errors import ConfigError
from pipeline.foreign.facts import ImageFacts, InstalledDistribution, Interpreter
from pipeline.lock import additions
from pipeline.lock.resolver import Wheel, WheelRequest
from pipeline.lock.wheel_tags import WheelTarget

PYTHON = Interpreter(
    path="vllm", program="/opt/venv/bin/python3.12", version="3.12.3", kind="venv", site="/opt/s", scripts="/opt/bin"
)
VLLM = InstalledDistribution(
    name="vllm", version="0.17.1", place="/opt/s", requires=("transformers<5", "ray[cgraph]>=2.48")
)
READING = ImageFacts(
    digest="sha256:0",
    platform="linux/arm64",
    glibc=39,
    python=PYTHON,
    distributions=(VLLM,),
    conflicts=("vllm 0.17.1 wants transformers<5, which is not there",),
)
REQUEST = WheelRequest(
    requirements=("ray[default]",),
    constraints=(),
    target=additions.wheel_target(READING),
    cutoff="",
    origin="image.yaml",
    pins={},
)


def wheel(name: str, version: str) -> Wheel:
    return Wheel(name, version, ("sha256:0",), f"{name}-{version}-py3-none-any.whl", 1)


def test_the_target_is_the_images_own_interpreter() -> None:
    assert additions.wheel_target(READING) == WheelTarget("arm64", "3.12", 39)


def test_conflicts_of_the_base_itself_do_not_refuse_additions() -> None:
    additions._refuse_inconsistent(REQUEST, READING, [wheel("ray", "2.55.1")])


def test_a_conflict_that_an_addition_causes_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"vllm 0\.17\.1 wants ray\[cgraph\]>=2\.48, but ray 2\.40\.0 is there"):
        additions._refuse_inconsistent(REQUEST, READING, [wheel("ray", "2.40.0")])


def test_of_requirements_for_one_distribution_the_strict_ones_come_first() -> None:
    inside = tuple(
        InstalledDistribution(name=f"a{i}", version="1", place="/opt/s", requires=(f"protobuf{spec}",))
        for i, spec in enumerate((">=3", ">=4", ">=5", "<6"))
    )
    reading = ImageFacts(digest="", platform="linux/arm64", glibc=39, python=PYTHON, distributions=inside)
    said = additions._required_by("protobuf", additions._requirements(reading, REQUEST))
    assert said == " (a3 1 wants protobuf<6; a0 1 wants protobuf>=3; a1 1 wants protobuf>=4; 1 more)"
    assert additions._required_by("six", []) == ""
