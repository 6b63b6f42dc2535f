"""ENTRYPOINTs in containers: which of them run a command as a launcher asks for it."""

import json
from collections.abc import Iterator

import pytest
from docker import DockerClient

from pipeline.core import platforms
from pipeline.core.log import NullLog
from pipeline.smoke.containers import ContainerFactory
from pipeline.smoke.entrypoint import try_entrypoint
from tests.docker import smoke_image

REPOSITORY = "tandem-test-entrypoint"


@pytest.fixture(scope="module")
def good(client: DockerClient) -> Iterator[str]:
    """Yields the image without an ENTRYPOINT."""
    yield smoke_image.load(client, f"{REPOSITORY}:good")
    client.images.remove(f"{REPOSITORY}:good", force=True)


def faults(client: DockerClient, good: str, *entrypoint: str, workdir: str = "/workspace/vllm") -> list[str]:
    """Returns the faults of an ENTRYPOINT, without the ENTRYPOINT's own words and the remedy."""
    tag = f"{REPOSITORY}:changed"
    instructions = [f"ENTRYPOINT {json.dumps(entrypoint)}", f"WORKDIR {workdir}"]
    image = smoke_image.changed(client, good, tag, "ln -s /workspace/vllm /link", instructions, {})
    platform = f"linux/{platforms.architecture_of(str(client.info()['Architecture']))}"
    try:
        answer = try_entrypoint(ContainerFactory(client, image, platform, emulated=False), NullLog())
    finally:
        client.images.remove(tag, force=True)
    assert not answer.crashed
    assert all(fault.startswith("ENTRYPOINT ") and "; have none" in fault for fault in answer.value)
    return [fault.rpartition("; have none")[0] for fault in answer.value]


def shell(line: str) -> tuple[str, ...]:
    return ("/usr/bin/bash", "-c", line, "-")


@pytest.mark.parametrize(
    "entrypoint",
    [
        ("/usr/bin/tini", "--"),
        ("/usr/bin/tini", "-g", "--", *shell('exec "$@"')),
        shell('sleep 0.5; exec "$@"'),
        shell('exec /usr/bin/env EXTRA=1 "$@"'),
    ],
)
def test_an_entrypoint_that_hands_over_passes(client: DockerClient, good: str, entrypoint: tuple[str, ...]) -> None:
    assert faults(client, good, *entrypoint) == []


@pytest.mark.parametrize("workdir", ["/workspace/vllm/", "/link"])
def test_a_workdir_that_is_a_link_or_ends_in_a_slash_is_known(client: DockerClient, good: str, workdir: str) -> None:
    assert faults(client, good, *shell('exec "$@"'), workdir=workdir) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('cd /tmp; exec "$@"', "runs the command in /tmp, not in WORKDIR /workspace/vllm"),
        ("exec $@", "changes the arguments of the command: 'two words' arrives as 'two'"),
        ('exec bash -c "$*"', "changes the arguments of the command"),
        ('unset VLLM_HOST_IP; exec "$@"', "hides the variable VLLM_HOST_IP of the container from the command"),
        ('"$@"; exit 0', "does not pass signals on to the command, which runs below `bash`"),
        ("echo serving; sleep 0.1; exit 3", "ignores the command it is given: the container ended with exit status 3"),
    ],
)
def test_an_entrypoint_that_runs_another_command_is_refused(
    client: DockerClient, good: str, line: str, words: str
) -> None:
    (fault, *_) = faults(client, good, *shell(line))
    assert words in fault


def test_an_entrypoint_that_keeps_serving_is_named_with_its_process(
    client: DockerClient, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.smoke.entrypoint.START_TIMEOUT_S", 2)
    (fault,) = faults(client, good, *shell("sleep 3600; true"))
    assert "ignores the command it is given: the container runs `/usr/bin/bash -c sleep 3600; true" in fault
