"""What is added to an image.yaml leaves all else as it was written."""

from pathlib import Path

import msgspec
import pytest
import yaml

from pipeline.config import image_yaml
from pipeline.config.models import CombinedImage
from pipeline.core.errors import ConfigError

IMAGE = "somebody/one@sha256:" + "0" * 64
WHERE = "dockerfiles/x/image.yaml"
TEXT = """\
# mine
combine: {model_from: a/b:1, cluster_from: c/d:2}  # both

# about workdir
workdir: /workspace/vllm
"""


def advised(text: str, **smoke: list[str]) -> str:
    after = image_yaml.apply_advice(text, WHERE, IMAGE, ["ray[default]", "uv"], smoke)
    image_yaml.check_rest_unchanged(text, after, WHERE, IMAGE)
    return after


def test_base_is_written_behind_combine_and_before_the_comments_of_the_next_key() -> None:
    after = advised(TEXT, without=["earlyoom"])
    lines = after.splitlines()
    assert [line for line in lines if line in TEXT.splitlines()] == [
        *TEXT.splitlines()[:2],
        *[""] * 4,
        *TEXT.splitlines()[3:],
    ]
    assert after.index("# both") < after.index("base:") < after.index("# about workdir")
    assert yaml.safe_load(after) == {
        **yaml.safe_load(TEXT),
        "base": {"image": IMAGE},
        "python": {"requirements": ["ray[default]", "uv"]},
        "smoke": {"without": ["earlyoom"]},
    }


@pytest.mark.parametrize(
    "text",
    [
        "combine:\n  model_from: a:1\n  # between\n  cluster_from: b:1\n# at the end",
        "workdir: /w\ncombine:\n    model_from: a:1\n    cluster_from: b:1",
        "combine:\n  {model_from: a:1,\n   cluster_from: b:1}\nenv:\n  A: |\n    x\n\n    y\n",
        "env: {A: ü}\ncombine: {model_from: a:1, cluster_from: b:1}\n",
        "---\ncombine: {model_from: a:1, cluster_from: b:1}\n",
        "combine:\n  model_from: a:1\n  cluster_from: >-\n    b:1\nworkdir: /w\n",
    ],
)
def test_all_other_text_stays_however_it_is_written(text: str) -> None:
    after = advised(text)
    assert yaml.safe_load(after)["base"] == {"image": IMAGE}
    kept = iter(after.splitlines())
    assert all(line in kept for line in text.splitlines())


def test_new_lines_end_like_the_others() -> None:
    after = advised(TEXT.replace("\n", "\r\n"))
    assert after.count("\n") == after.count("\r\n")


def test_existing_keys_are_not_written_again() -> None:
    own = TEXT + "python:\n  requirements: [mine]\nsmoke:\n  without: [curl]\n"
    assert yaml.safe_load(advised(own, without=["git"])) == {**yaml.safe_load(own), "base": {"image": IMAGE}}


@pytest.mark.parametrize(
    "own", [TEXT + "smoke:\n    # mine\n    ray: false\n", "smoke:\n  ray: false\n  architectures:\n  - A\n" + TEXT]
)
def test_without_is_added_to_an_existing_smoke(own: str) -> None:
    after = advised(own, without=["earlyoom"])
    before = yaml.safe_load(own)["smoke"]
    assert yaml.safe_load(after)["smoke"] == {**before, "without": ["earlyoom"]}
    assert [line for line in after.splitlines() if line.strip() == "# mine"] == [
        line for line in own.splitlines() if line.strip() == "# mine"
    ]


def test_an_existing_without_stays() -> None:
    own = TEXT + "smoke:\n  without: [git]\n"
    assert yaml.safe_load(advised(own, without=["earlyoom"]))["smoke"] == {"without": ["git"]}


def test_only_the_name_of_an_existing_base_changes() -> None:
    own = TEXT + 'base:\n  image: "old/one:2"  # from last week\n'
    assert advised(own) == own.replace('"old/one:2"', IMAGE)


@pytest.mark.parametrize(
    "text",
    ["{combine: {model_from: a:1, cluster_from: b:1}}\n", TEXT + "base: null\n", TEXT + "base: [1]\n"],
)
def test_text_that_cannot_be_added_to_line_by_line_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="in a way that base cannot be added to") as caught:
        advised(text)
    assert caught.value.hint == f"write base: {{image: {IMAGE}}}"


def test_an_anchor_for_the_base_is_not_followed_into_another_key() -> None:
    text = "combine: {model_from: &a a:1, cluster_from: b:1}\nbase: {image: *a}\n"
    with pytest.raises(ConfigError):
        advised(text)


def test_a_new_image_yaml_has_everything_that_was_found() -> None:
    text = image_yaml.render_image_yaml(
        "linux/arm64", IMAGE, ["ray[default]"], {"model_from": "a:1", "cluster_from": "b:1"}, {"architectures": ["A"]}
    )
    image = msgspec.convert(yaml.safe_load(text), CombinedImage)
    assert image.base is not None
    assert (image.base.image, image.python.requirements, image.smoke.architectures) == (
        IMAGE,
        ("ray[default]",),
        ("A",),
    )


def test_the_dockerfile_is_the_one_that_comes_with_tandem() -> None:
    shipped = Path(__file__).parents[3] / "dockerfiles/gb10/Dockerfile"
    assert shipped.read_text() == image_yaml.DOCKERFILE
