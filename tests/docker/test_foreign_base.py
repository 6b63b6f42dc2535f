"""A combined image on a base that says things only in its configuration: WORKDIR, USER, HEALTHCHECK, ONBUILD."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.config.models import CombinedImage, ImageBase
from pipeline.core import procs
from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.foreign import pull
from pipeline.foreign.facts import ImageFacts, Interpreter
from pipeline.host import engine
from pipeline.image import base_paths, build
from pipeline.image.build import Parts
from pipeline.image.wheels import LAYERS_FILE
from pipeline.lock.contents import CombinedLock
from pipeline.lock.request import request_of
from tests.tinyroot import REGISTRY, Root, debian, distribution, script, tar

PLATFORM = "linux/arm64"
SITE = "usr/local/lib/python3.11/dist-packages"
FILES: Root = {
    **{path: content for path, content in debian().items() if path != "etc/passwd"},
    **distribution(SITE, "vllm", "0.17.1"),
    f"{SITE}/vllm/__init__.py": b"",
    f"{SITE}/vllm/model_executor/models/registry.py": REGISTRY,
    "usr/local/bin/vllm": script("/usr/bin/python3"),
}
PYTHON = Interpreter(
    path="/usr/bin/python3",
    program="/usr/bin/python3.11",
    version="3.11.2",
    kind="system",
    site=f"/{SITE}",
    scripts="/b",
)
CHANGES = (
    *("WORKDIR /srv/model", "USER 5", "ENV PATH=/usr/local/bin:/usr/bin", "HEALTHCHECK CMD vllm health"),
    'ENTRYPOINT ["vllm", "serve"]',
)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[str]:
    """NAME@digest of the base, which only this engine has."""
    yield from imported(tmp_path, CHANGES)


@pytest.fixture
def base_with_triggers(tmp_path: Path) -> Iterator[str]:
    yield from imported(tmp_path, (*CHANGES, "ONBUILD RUN x"))


def imported(folder: Path, changes: tuple[str, ...]) -> Iterator[str]:
    name = f"tandem-test/foreign-base:{uuid4().hex[:8]}"
    (folder / "root.tar").write_bytes(tar(FILES))
    options = [word for change in changes for word in ("--change", change)]
    command = ["docker", "import", "--platform", PLATFORM, *options, str(folder / "root.tar"), name]
    procs.run(command, log=NullLog(), inherit=procs.DOCKER, timeout_s=120)
    described = engine.find_image("local", name)
    assert described is not None
    yield f"{name.partition(':')[0]}@{described['Id']}"
    engine.client().images.remove(described["Id"], force=True)


def locked_on(base: str, facts: ImageFacts) -> CombinedLock:
    image = CombinedImage(base=ImageBase(image=base))
    return CombinedLock(
        name="tiny", request=request_of(image), cutoff="2026-11-01", epoch=1_793_491_200, wheels=(), interpreter=(),
        tools={}, base=base, facts=facts,
    )  # fmt: skip


def read(base: str) -> ImageFacts:
    return pull.read_image(base, base.partition("@")[2], PLATFORM, NullLog()).facts


def build_on(base: str, facts: ImageFacts, folder: Path) -> str:
    """Build the combined image of the project's own Dockerfile, without additions; returns its tag."""
    locked, tag = locked_on(base, facts), f"tandem-test/foreign-base:{uuid4().hex[:8]}"
    parts = Parts(base=folder / base_paths.LIST, wheels=folder, folder=Path(__file__).parents[2] / "dockerfiles/gb10")
    base_paths.pull_base(locked, folder, folder, NullLog())
    (folder / LAYERS_FILE).write_text(json.dumps([]))
    scratch = folder / "scratch"
    scratch.mkdir()
    build.build("tiny", CombinedImage(base=ImageBase(image=base)), locked, parts, tag, scratch, NullLog())
    return tag


def test_what_the_base_says_of_running_it_is_replaced(base: str, tmp_path: Path) -> None:
    facts = read(base)
    tag = build_on(base, facts, tmp_path)
    client = engine.client()
    try:
        described = engine.find_image("local", tag)
        assert described is not None
        assert tuple(described["RootFS"]["Layers"])[: len(facts.layers)] == facts.layers
        config = described["Config"]
        assert (config["User"], config["WorkingDir"]) == ("0", "/workspace/vllm")
        assert config["Healthcheck"] == {"Test": ["NONE"]}
        assert (config["Entrypoint"], config["Cmd"]) == (None, ["tandem-serve"])
        # `tandem-serve` starts where the base did, though no layer of the base has that folder.
        paths = pull.read_image(tag, described["Id"], PLATFORM, NullLog()).paths
        assert {b"d srv/model", b"f usr/local/bin/tandem-serve", b"d workspace/vllm"} <= set(paths)
    finally:
        client.images.remove(tag, force=True)


def test_instructions_for_builds_on_top_do_not_run(base_with_triggers: str) -> None:
    with pytest.raises(TandemError, match="ONBUILD RUN x"):
        read(base_with_triggers)
    facts = ImageFacts(digest="sha256:0", platform=PLATFORM, glibc=36, python=PYTHON)
    with pytest.raises(TandemError, match="ONBUILD RUN x"):
        build.tag_base(locked_on(base_with_triggers, facts))
