"""Files of an image that would break or hold up their reader: each is read, left out, or one message."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pipeline.core.errors import TandemError
from pipeline.foreign import comparison, distributions, entrypoint, filesystem, inspection, model_registry, pip_check
from pipeline.foreign.facts import ImageFacts, InstalledDistribution
from pipeline.foreign.inspection import ImageConfig
from tests.tinyroot import Link, Program, Root, debian, distribution, tar

SITE = "usr/local/lib/python3.11/dist-packages"
LIMIT_S = 1


def read(root: Root) -> ImageFacts:
    view = filesystem.read_tar(iter([tar(root)]), inspection.RULES)
    return inspection.inspect_image(view, ImageConfig(env={"PATH": "/usr/bin:/bin"}), "sha256:1", "linux/arm64")


def with_files(files: Root) -> Callable[[], Any]:
    return lambda: read({**debian(), **files})


def installed(version: str, *requires: str) -> InstalledDistribution:
    return InstalledDistribution(name="a", version=version, place=f"/{SITE}", requires=requires)


SPACES = " " * 3000
SLOW: dict[str, Callable[[], Any]] = {
    "a script of spaces": with_files({"usr/bin/vllm": Program(f"#!/bin/sh\n'''exec'{SPACES}".encode())}),
    "a glibc that goes on": with_files({"lib/aarch64-linux-gnu/libc.so.6": b"GNU C Library " * 60_000}),
    "an entrypoint of assignments": lambda: entrypoint.hands_over(["/x"], "#!/bin/sh\n" + "A=" * 30_000),
    "an entrypoint of quotes": lambda: entrypoint.hands_over(["/x"], "#!/bin/sh\nexport A=" + "'" * 30_000),
    "a name of many models": lambda: comparison.prediction_heads(["xForA" * 20_000 + "!"], []),
    "a version of many digits": lambda: pip_check.find_conflicts(
        [installed("1", "a>=1"), installed("9" * 50_000)], python="3.12", platform="linux/arm64"
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_no_text_makes_the_reader_slow(name: str) -> None:
    begun = time.process_time()
    with suppress(TandemError):
        SLOW[name]()
    assert time.process_time() - begun < LIMIT_S


@pytest.mark.parametrize(
    "mapping",
    ["{[]: 1}", "-" * 100_000 + "1", "[" * 5000, "{'a': " * 5000, "1 +", "{**x}", "{'a': 1, **{}}", "lambda: 1", "\0"],
)
def test_a_finder_that_cannot_be_read_names_no_source(mapping: str) -> None:
    finder = f"MAPPING: dict[str, str] = {mapping}\n".encode()
    facts = read({**debian(), **distribution(SITE, "a", "1"), f"{SITE}/__editable___a_1_finder.py": finder})
    assert [(one.name, one.editable) for one in facts.distributions] == [("a", "")]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"url": []}', '{"dir_info": 3}', '{"url": "file://["}', "[]", "\0"])
def test_a_direct_url_that_cannot_be_read_names_no_source(text: str) -> None:
    url = {f"{SITE}/a-1.dist-info/direct_url.json": text.encode()}
    facts = read({**debian(), **distribution(SITE, "a", "1"), **url})
    assert [(one.name, one.editable) for one in facts.distributions] == [("a", "")]


@pytest.mark.parametrize(
    "source",
    ["x = " + "-" * 100_000 + "1", "_VLLM_MODELS = " + "|".join(["a"] * 3000), "\0", "[" * 5000, "_VLLM_MODELS = [[]]"],
)
def test_a_registry_that_cannot_be_read_is_one_message(source: str) -> None:
    with pytest.raises(TandemError, match=r"registry\.py"):
        model_registry.parse_architectures(source)


@pytest.mark.parametrize(
    "requirement", ["b; " + "(" * 100_000, "b; " + "(" * 1500 + "os_name == 'x'" + ")" * 1500, "b>=" + "9" * 5000]
)
def test_a_requirement_that_cannot_be_read_is_reported_as_such(requirement: str) -> None:
    (line,) = pip_check.find_conflicts([installed("1", requirement)], python="3.12", platform="linux/arm64")
    assert line.startswith("a 1 has a requirement that cannot be read: ")


def test_a_version_too_long_for_the_name_of_a_folder_does_not_count() -> None:
    metadata = {f"{SITE}/a-1.dist-info/METADATA": b"Name: a\nVersion: " + b"9" * 5000 + b"\n"}
    facts = read({**debian(), **metadata})
    assert facts.distributions == ()
    assert facts.conflicts == (f"/{SITE}/a-1.dist-info has no metadata that says name and version",)


def test_the_lines_that_pip_and_uv_write_still_lead_to_their_python() -> None:
    lines = ("'''exec' \"/usr/bin/python3\" \"$0\" \"$@\"\n' '''\n", "'''exec' /usr/bin/python3 \"$0\" \"$@\"\n' '''\n")
    for line in lines:
        facts = read({**debian(), "usr/bin/vllm": Program(f"#!/bin/sh\n{line}".encode())})
        assert facts.interpreters["vllm"] == "/usr/bin/python3.11"
    assert distributions.MAX_NAME_CHARS < pip_check.MAX_REQUIREMENT_CHARS < 4300


def test_a_path_of_links_in_a_circle_is_not_a_folder_of_the_python() -> None:
    loop: Root = {f"{SITE}/x.pth": b"/srv/a\n", "srv/a": Link("b"), "srv/b": Link("a")}
    facts = read({**debian(), **distribution(SITE, "a", "1"), **loop})
    assert facts.python.paths == (f"/{SITE}",)
