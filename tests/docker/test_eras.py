"""The launchers of every era on two machines of the lab: real Ray, real docker, real ssh."""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.launcher_contract import CONTAINER_NAME
from pipeline.core import procs
from pipeline.core.errors import Cancelled, HostError
from pipeline.core.log import NullLog
from pipeline.core.waiting import wait_until
from pipeline.host import engine
from pipeline.lab import lab
from pipeline.lab import machines as labengine
from pipeline.lab.lab import Machine
from pipeline.registry import push
from pipeline.registry.push import SmokedImage
from pipeline.smoke import eras
from pipeline.smoke.era_machines import ClusterMachine
from pipeline.smoke.era_setup import prepare_machines
from pipeline.smoke.report import SmokeError
from pipeline.smoke.verdict import CheckOutcome, Verdict
from tests.docker import era_image
from tests.docker.world_project import served
from tests.flow.project import REPOSITORY
from tests.trigger import Trigger

pytestmark = pytest.mark.timeout(1800)
HERE = "tandem/eras"


@dataclass
class Ready:
    """A lab whose machines have the image, by one digest."""

    root: Path
    machines: tuple[Machine, ...]
    registry: str
    digest: str

    @property
    def reference(self) -> str:
        return f"{labengine.REGISTRY}/{HERE}@{self.digest}"

    def pull(self, digest: str) -> str:
        """Have both machines pull an image of the registry; its name there."""
        reference = f"{labengine.REGISTRY}/{HERE}@{digest}"
        for nth in (0, 1):
            self.docker(nth, "pull", "--quiet", reference)
        return reference

    def changed(self, command: str, *instructions: str) -> str:
        """An image made from the good one by a command and Dockerfile instructions, on both machines; its name."""
        client = engine.client()
        container = client.containers.create(self.digest, ["bash", "-c", command])
        try:
            container.start()
            assert container.wait()["StatusCode"] == 0
            name = f"{self.registry}/{HERE}"
            client.api.commit(str(container.id), name, "changed", changes=list(instructions))
        finally:
            container.remove(force=True, v=True)
        digest = str(client.images.get(f"{name}:changed").id)
        assert "errorDetail" not in client.images.push(name, tag="changed")
        client.images.remove(f"{name}:changed", force=True)
        return self.pull(digest)

    def cluster_machines(self, *references: str) -> list[ClusterMachine]:
        images = references or (self.reference, self.reference)
        return [
            ClusterMachine(name=m.name, docker=("docker", "--host", m.endpoint), address=m.address, image=reference)
            for m, reference in zip(self.machines, images, strict=True)
        ]

    def docker(self, machine: int, *words: str) -> str:
        argv = ["docker", "--host", self.machines[machine].endpoint, *words]
        return procs.capture(argv, inherit=procs.DOCKER, env=lab.environment(self.root), timeout_s=300)

    def left(self) -> list[str]:
        """Whatever a check could have left on the machines."""
        listings = (("ps", "-aq"), ("volume", "ls", "-q"))
        return [word for nth in (0, 1) for look in listings for word in self.docker(nth, *look).split()]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    root, log = tmp_path_factory.mktemp("lab"), NullLog()
    (root / "lockfiles").mkdir()
    shutil.copy2(REPOSITORY / "lockfiles/lab.debs.txt", root / "lockfiles")
    digest = era_image.made(log)
    with served(tmp_path_factory.mktemp("registry")) as (registry, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(eras, "READY_TIMEOUT_S", {False: 400, True: 900})
        push.push(SmokedImage(digest, era_image.image().platform), registry, HERE, "1", log)
        engine.client().images.remove(f"{registry}/{HERE}:1")
        with lab.lab_in_use(root, "containerd", log, registry=registry) as machines:
            lab_with_image = Ready(root, machines, registry, digest)
            lab_with_image.pull(digest)
            yield lab_with_image


def checked(ready: Ready, machines: list[ClusterMachine], substitutions: Sequence[str] = ()) -> tuple[Any, list[str]]:
    """The report, good or bad, and the lines that were written."""
    log, image = NullLog(), era_image.image()
    env = lab.environment(ready.root)
    message = ""
    try:
        report = eras.check_eras(
            ready.reference, "era-ray", image, machines, env, log, substitutions=substitutions
        ).report
    except SmokeError as error:
        report, message = error.report, str(error)
    print("\n".join(log.lines))
    bad = [name for name, check in report["checks"].items() if check["outcome"] != "ok"]
    assert message.partition("\n")[0] == (
        f"smoke:era-ray:launcher: {len(bad)} of 5 checks did not pass: {', '.join(bad)}" if bad else ""
    )
    assert ready.left() == []
    return report, log.lines


def test_a_foreign_image_fails_only_in_the_eras_that_need_its_script_and_its_entrypoint(
    ready: Ready,
) -> None:
    foreign = ready.changed(
        "rm /workspace/vllm/run-cluster-node.sh", 'ENTRYPOINT ["bash", "-c", "echo serving; sleep 3"]'
    )
    report, lines = checked(ready, ready.cluster_machines(foreign, foreign), lab.SUBSTITUTIONS)
    assert report["substitutions"][: len(lab.SUBSTITUTIONS)] == list(lab.SUBSTITUTIONS)
    assert any("--ib-if" in words for words in report["substitutions"])
    assert all(any(words in line for line in lines) for words in report["substitutions"])
    assert any("│ era D" in line for line in lines)
    outcomes = {name: check["outcome"] for name, check in report["checks"].items()}
    assert outcomes == {"era A": "failed", "era A, mods": "failed", "era B": "failed", "era C": "ok", "era D": "ok"}
    for era in ("era A", "era B"):
        (detail,) = report["checks"][era]["details"]
        assert any(words in detail for words in ("serving", "is not running", "has ended", "No such container"))


def test_an_image_without_the_script_is_refused_in_docker_s_own_words(ready: Ready) -> None:
    bare = ready.changed("rm /workspace/vllm/run-cluster-node.sh")
    verdict = one(ready, "era A", ready.cluster_machines(bare, bare))
    assert verdict.outcome is CheckOutcome.FAILED
    (detail,) = verdict.details
    assert "./run-cluster-node.sh" in detail
    assert "no such file or directory" in detail


def test_the_same_image_under_two_ids_is_refused_before_anything_starts(ready: Ready) -> None:
    verdict = one(ready, "era D", ready.cluster_machines(ready.reference, ready.changed("true")))
    (detail,) = verdict.details
    assert f"spark-1 has the image as {ready.digest}" in detail
    assert "pull one digest" in detail


def test_ray_of_another_version_on_the_second_node_is_named(ready: Ready) -> None:
    other = ready.changed(
        "sed -i 's/^version = .*/version = \"2.1.0\"/' $(python3 -c 'import ray; print(ray._version.__file__)')"
    )
    (detail,) = one(ready, "era B", ready.cluster_machines(ready.reference, other)).details
    assert detail.startswith("spark-2: ")
    assert re.search(
        r"Version mismatch: the cluster has Ray 2\.\d+\.\d+ and Python 3\.\S+, this node Ray 2\.1\.0 and", detail
    )


def test_a_cluster_is_closed_by_a_token_among_the_operator_s_arguments(ready: Ready) -> None:
    token = ("-e", "RAY_AUTH_MODE=token", "-e", "RAY_AUTH_TOKEN=" + "5" * 64)
    (detail,) = one(ready, "era B", ready.cluster_machines(), token).details
    assert detail.endswith("closed by the token among the operator's docker arguments")


def one(ready: Ready, era: str, machines: list[ClusterMachine], arguments: Sequence[str] = ()) -> Verdict:
    """The verdict on one era."""
    log, env = NullLog(), lab.environment(ready.root)
    with prepare_machines(machines, env, era_image.image().workdir, arguments, (), log) as setup:
        verdict = eras.check_era(era, setup, log)
    print("\n".join(log.lines))
    assert ready.left() == []
    return verdict


def test_a_running_cluster_of_another_user_is_left_alone(ready: Ready) -> None:
    theirs = ready.docker(
        1, "run", "-d", "--name", CONTAINER_NAME, "--entrypoint=", ready.reference, "sleep", "infinity"
    )
    try:
        with pytest.raises(HostError, match=f"spark-2 already has a container {CONTAINER_NAME}"):
            eras.check_eras(
                ready.reference,
                "x",
                era_image.image(),
                ready.cluster_machines(),
                lab.environment(ready.root),
                NullLog(),
            )
        assert ready.docker(1, "ps", "-q", "--no-trunc").strip() == theirs.strip()
    finally:
        ready.docker(1, "rm", "--force", CONTAINER_NAME)


def test_an_interruption_leaves_nothing_on_either_machine(ready: Ready) -> None:
    def stop() -> None:
        wait_until(lambda: bool(ready.left()), timeout_s=120, interval_s=0.2)
        procs.cancel()

    log = Trigger("run-cluster-node.sh", stop)
    try:
        with pytest.raises(Cancelled):
            eras.check_eras(
                ready.reference, "x", era_image.image(), ready.cluster_machines(), lab.environment(ready.root), log
            )
    finally:
        procs.resume()
    assert ready.left() == []


def test_an_address_that_is_not_the_machine_s_is_refused(ready: Ready) -> None:
    head, worker = ready.cluster_machines()
    wrong = ClusterMachine(name=worker.name, docker=worker.docker, address="192.0.2.9", image=worker.image)
    with pytest.raises(HostError, match=r"spark-2: no interface has 192\.0\.2\.9"):
        eras.check_eras(ready.reference, "x", era_image.image(), [head, wrong], lab.environment(ready.root), NullLog())
    assert ready.left() == []
