"""The lab's machines: real engines behind real ssh servers, with both image stores."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.gc_elsewhere import find_old_elsewhere, remove_all
from pipeline.core import procs
from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.core.waiting import wait_until
from pipeline.graph.garbage import NODES, KeptReferences
from pipeline.host import engine
from pipeline.lab import lab
from pipeline.lab import machines as labengine
from pipeline.lab import ssh as labssh
from pipeline.lab.lab import Machine
from tests import stored
from tests.docker.world_project import served
from tests.flow.project import REPOSITORY
from tests.ports import free_port

pytestmark = pytest.mark.timeout(1800)
IMAGE = f"{labengine.REGISTRY}/tandem/lab-test:1"
PROGRAMS = "/usr/bin/bash /usr/bin/socat /usr/bin/sleep /usr/bin/ls"


def checkout(root: Path) -> Path:
    """A checkout, as far as the lab needs one."""
    (root / "lockfiles").mkdir(parents=True)
    shutil.copy2(REPOSITORY / "lockfiles/lab.debs.txt", root / "lockfiles")
    return root


def left(root: Path) -> dict[str, list[str]]:
    """All that the engine holds of a checkout's lab, whatever its state."""
    client = engine.client()
    label = f"tandem.lab={lab.lab_id(root)}"
    filters: dict[str, Any] = {"label": label}
    found: dict[str, list[Any]] = {
        "containers": stored.containers(client, label),
        "volumes": client.volumes.list(filters=filters),
        "networks": client.networks.list(filters=filters),
    }
    return {kind: [thing.name for thing in things] for kind, things in found.items()}


NOTHING: dict[str, list[str]] = {"containers": [], "volumes": [], "networks": []}


@dataclass
class Standing:
    """A lab that is up."""

    root: Path
    registry: str
    machines: tuple[Machine, ...]
    store: str
    log: NullLog = field(default_factory=NullLog)

    def docker(self, machine: int, *words: str) -> str:
        """What the docker client says of a machine's engine."""
        argv = ["docker", "--host", self.machines[machine].endpoint, *words]
        return procs.capture(argv, inherit=procs.DOCKER, env=lab.environment(self.root), timeout_s=120)

    def ssh(self, machine: int, command: str) -> str:
        """What a command says on a machine."""
        return procs.capture(
            ["ssh", self.machines[machine].address, command], inherit=procs.DOCKER, env=lab.environment(self.root)
        )


@pytest.fixture(scope="module", params=["containerd", "overlay2"])
def standing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """A lab with a registry that holds a small image."""
    root, log = checkout(tmp_path_factory.mktemp("lab")), NullLog()
    path = os.environ["PATH"]
    with served(tmp_path_factory.mktemp("registry")) as (registry, _):
        with lab.lab_in_use(root, request.param, log, registry=registry) as machines:
            found = Standing(root, registry, machines, request.param, log)
            publish(found)
            yield found
        assert left(root) == NOTHING
        assert not labssh.files_folder(root).exists()
        assert os.environ["PATH"] == path


def publish(found: Standing) -> None:
    """Push an image of a few programs of a machine from here to the registry."""
    libraries = f"$(ldd {PROGRAMS} | grep -oE '[[:space:]]/[^ ]+' | sort -u)"
    command = f"tar -c -h -C / -f - {PROGRAMS} {libraries} 2>/dev/null | base64 -w0"
    name = f"{found.registry}/tandem/lab-test"
    client = engine.client()
    client.api.import_image_from_data(base64.b64decode(found.ssh(0, command)), repository=name, tag="1")
    try:
        said = client.images.push(name, tag="1")
        assert "errorDetail" not in said
    finally:
        client.images.remove(f"{name}:1", force=True)


def test_every_machine_has_an_engine_of_its_own_with_the_store_asked_for(standing: Standing) -> None:
    infos = [json.loads(standing.docker(nth, "info", "--format", "{{json .}}")) for nth in (0, 1)]
    assert [info["Name"] for info in infos] == ["spark-1", "spark-2"]
    assert infos[0]["ID"] != infos[1]["ID"]
    drivers = {"containerd": "overlayfs", "overlay2": "overlay2"}
    assert {info["Driver"] for info in infos} == {drivers[standing.store]}
    assert {machine.store for machine in standing.machines} == {standing.store}


def test_every_machine_has_a_status_with_its_engine_s_version(standing: Standing) -> None:
    versions = [standing.docker(nth, "version", "--format", "{{.Server.Version}}").strip() for nth in (0, 1)]
    statuses = [(look.machine, look.state, look.engine) for look in lab.machine_statuses(standing.root)]
    assert statuses == [
        (machine, "running", version) for machine, version in zip(standing.machines, versions, strict=True)
    ]


def test_the_machines_pull_what_was_pushed_under_the_lab_s_name_of_the_registry(standing: Standing) -> None:
    digests = set()
    for nth in (0, 1):
        standing.docker(nth, "pull", IMAGE)
        (digest,) = json.loads(standing.docker(nth, "image", "inspect", "--format", "{{json .RepoDigests}}", IMAGE))
        digests.add(digest)
    assert len(digests) == 1
    assert standing.docker(0, "run", "--rm", IMAGE, "bash", "-c", "echo inside") == "inside\n"


def test_containers_on_the_network_of_two_machines_reach_each_other(standing: Standing) -> None:
    port = free_port()
    echo = ["socat", f"TCP-LISTEN:{port},fork,reuseaddr", "PIPE"]
    standing.docker(1, "run", "--detach", "--rm", "--name", "echo", "--network", "host", IMAGE, *echo)
    try:
        address = standing.machines[1].address
        ask = f"""for try in 1 2 3 4 5 6 7 8 9; do exec 3<>/dev/tcp/{address}/{port} && break; sleep 1; done
            echo hello >&3; read -r -t 10 line <&3; echo "$line" """
        said = standing.docker(0, "run", "--rm", "--network", "host", IMAGE, "bash", "-c", ask)
    finally:
        standing.docker(1, "rm", "--force", "echo")
    assert said == "hello\n"


def test_a_machine_accepts_the_options_of_launchers(standing: Standing) -> None:
    spark = ["--gpus", "all", "--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ipc=host", "--network", "host"]
    said = standing.docker(0, "run", "--rm", *spark, IMAGE, "bash", "-c", "echo ran; ls /dev/infiniband")
    assert said == "ran\nuverbs0\n"
    said = standing.docker(1, "run", "--rm", "--privileged", "--gpus", "all", IMAGE, "bash", "-c", "echo ran")
    assert said == "ran\n"


def test_nothing_but_the_registry_is_reached_from_a_machine(standing: Standing) -> None:
    assert standing.ssh(0, "ip route").count("default") == 0
    assert standing.ssh(0, f"exec 3<>/dev/tcp/{labengine.HOST}/{labengine.PORT} && echo reached") == "reached\n"


def test_gc_removes_an_old_image_from_machines_and_leaves_what_a_container_uses(standing: Standing) -> None:
    digests = dict(zip(("used", "old"), published(standing, "used", "old"), strict=True))
    nodes = [
        {"name": machine.name, "endpoint": machine.endpoint, "address": machine.address}
        for machine in standing.machines
    ]
    configured(standing.root, standing.registry, nodes)
    for digest in digests.values():
        standing.docker(1, "pull", f"{labengine.REGISTRY}/tandem/lab-test@{digest}")
    used = f"{labengine.REGISTRY}/tandem/lab-test@{digests['used']}"
    standing.docker(1, "create", "--name", "user", used, "bash")
    hashes = frozenset(digest.removeprefix("sha256:") for digest in digests.values())
    items, notes = find_old_elsewhere(standing.root, KeptReferences(paths=frozenset(), hashes=frozenset(), ours=hashes))
    assert notes == []
    gone = [item for item in items if item.kind == NODES]
    # The first machine made them, and what a container of the other uses stays there too.
    assert [item.name.partition(": ")[0] for item in gone] == [machine.endpoint for machine in standing.machines]
    assert remove_all(gone, notes) == gone
    for nth in (0, 1):
        left = standing.docker(nth, "images", "--digests", "--no-trunc")
        assert (digests["old"] in left, digests["used"] in left) == (False, True)
    standing.docker(1, "rm", "user")


def published(found: Standing, *texts: str) -> list[str]:
    """Push an image of each text, on a machine; the digests in the registry."""
    digests = []
    for text in texts:
        name = f"{labengine.REGISTRY}/tandem/lab-test:{text}"
        made = found.ssh(
            0, f"echo {text} >/tmp/{text} && tar -c -C /tmp {text} | docker import - {name} && docker push {name}"
        )
        digests.append(made.rpartition("digest: ")[2].split()[0])
    return digests


def configured(root: Path, registry: str, nodes: list[dict[str, str]]) -> None:
    """Give a checkout one cluster of these nodes."""
    cluster = {"image": "lab-test", "nodes": nodes}
    pipeline = {"default": "c", "registry": {"address": registry, "serve": False}, "clusters": {"c": cluster}}
    image = {"base": {"debian": "trixie", "packages": ["bash"]}, "python": {"version": "3.13", "requirements": ["x"]}}
    (folder := root / "dockerfiles/lab-test").mkdir(parents=True)
    (root / "pipeline.yaml").write_text(json.dumps(pipeline))
    (folder / "image.yaml").write_text(json.dumps(image))
    (folder / "Dockerfile").write_text("FROM scratch\n")


def test_only_their_owner_can_read_the_keys_and_the_user_s_own_ssh_is_unchanged(standing: Standing) -> None:
    folder = labssh.files_folder(standing.root)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / labssh.KEY).stat().st_mode & 0o777 == 0o600
    # Without the lab's ssh no key fits.
    options = ["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
    options += ["-o", "UserKnownHostsFile=/dev/null"]
    with pytest.raises(procs.ProgramError, match="Permission denied"):
        procs.capture(
            [labssh.find_programs(folder), *options, f"root@{standing.machines[0].address}", "true"],
            inherit=procs.DOCKER,
        )


ENDED_EARLY = """
import sys
from pathlib import Path
from pipeline.lab import lab
from pipeline.core.log import NullLog
lab.up(Path(sys.argv[1]), NullLog(), registry="127.0.0.1:1", count=1)
"""


def ended_early(root: Path, how: signal.Signals) -> int:
    """Begin `up`, and end it by a signal as soon as its first machine is there; returns its status."""
    process = subprocess.Popen([sys.executable, "-c", ENDED_EARLY, str(root)], cwd=REPOSITORY)
    deadline = time.monotonic() + 120
    while not left(root)["containers"]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    return process.wait(60)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A checkout whose lab is gone afterwards."""
    made = checkout(tmp_path / "100% my checkout")
    yield made
    lab.down(made)


def ids(root: Path) -> list[str]:
    """The containers of a lab, each another after it was made anew."""
    return [engine.find_container("local", name)["Id"] for name in left(root)["containers"]]


def test_up_leaves_a_lab_alone_that_is_up(root: Path) -> None:
    machines = lab.up(root, NullLog(), registry="127.0.0.1:1", count=1)
    before, key = ids(root), labssh.public_key(labssh.files_folder(root))
    again = lab.up(root, NullLog(), registry="127.0.0.1:1")
    assert again == lab.running_machines(root) == machines
    assert (ids(root), labssh.public_key(labssh.files_folder(root))) == (before, key)


def test_a_lab_that_is_up_stays_up_after_its_use_and_is_not_used_for_another_store(root: Path) -> None:
    machines = lab.up(root, NullLog(), registry="127.0.0.1:1", count=1, store="overlay2")
    before = ids(root)
    with (
        pytest.raises(TandemError, match="image store overlay2 is up"),
        lab.lab_in_use(root, "containerd", NullLog(), registry="127.0.0.1:1"),
    ):
        pytest.fail("it was used")
    with lab.lab_in_use(root, "", NullLog(), registry="127.0.0.1:1") as found:
        assert found == machines
    assert ids(root) == before


def test_two_who_want_a_lab_at_once_each_get_a_whole_one(root: Path) -> None:
    def use(log: NullLog) -> list[str]:
        with lab.lab_in_use(root, "", log, registry="127.0.0.1:1"):
            time.sleep(3)  # whoever is first would be done in the middle of the other's use
            return [look.engine for look in lab.machine_statuses(root)]

    logs = (NullLog(), NullLog())
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(use, logs))
    assert all(len(engines) == 2 and all(engines) for engines in found)
    assert sum("waiting: the lab" in line for log in logs for line in log.lines) == 1
    assert left(root) == NOTHING


@pytest.mark.parametrize("name", ["100% mine", "a%d", "a #b'c"])
def test_ssh_reads_a_checkout_s_path_as_it_is(tmp_path: Path, name: str) -> None:
    (there := tmp_path / name).mkdir()
    labssh.write_files(there, labssh.find_programs(there), {"172.20.0.2": "ssh-ed25519 AAAA"})
    said = procs.capture([str(there / labssh.BIN / "ssh"), "-G", "172.20.0.2"], inherit=procs.DOCKER).splitlines()
    paths = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in said}
    # ssh shows what it has read, in which it takes %% for % when it uses it.
    assert paths["identityfile"].replace("%%", "%") == str(there / labssh.KEY)
    assert paths["userknownhostsfile"].replace("%%", "%") == str(there / labssh.KNOWN_HOSTS)


def test_an_interrupted_up_leaves_nothing(root: Path) -> None:
    assert ended_early(root, signal.SIGINT) != 0
    assert left(root) == NOTHING
    assert not labssh.files_folder(root).exists()


def test_the_remains_of_a_killed_up_are_not_a_lab_and_the_next_up_replaces_them(root: Path) -> None:
    assert ended_early(root, signal.SIGKILL) == -signal.SIGKILL
    assert lab.down(root) != []
    ended_early(root, signal.SIGKILL)
    key = labssh.public_key(labssh.files_folder(root))
    (machine,) = lab.up(root, NullLog(), registry="127.0.0.1:1", count=1)
    assert machine.name == "spark-1"
    assert lab.running_machines(root) == (machine,)
    assert key in ("", labssh.public_key(labssh.files_folder(root))) or lab.machine_statuses(root)[0].engine


def test_a_machine_ends_with_its_engine_and_the_lab_is_not_whole(root: Path) -> None:
    machines = lab.up(root, NullLog(), registry="127.0.0.1:1")
    procs.capture(["ssh", machines[1].address, "pkill dockerd"], inherit=procs.DOCKER, env=lab.environment(root))
    container = engine.client().containers.get(labengine.engine_name(lab.lab_id(root), "spark-2"))
    assert container.wait(timeout=120)["StatusCode"] == 1
    # The engine's list of containers comes a moment later.
    assert wait_until(lambda: lab.running_machines(root) == (), timeout_s=60, interval_s=0.2)
    assert [look.engine != "" for look in lab.machine_statuses(root)] == [True, False]
    assert len(lab.up(root, NullLog(), registry="127.0.0.1:1")) == 2


def test_down_lists_what_it_removed_and_nothing_the_second_time(root: Path) -> None:
    lab.up(root, NullLog(), registry="127.0.0.1:1", count=1)
    removed = lab.down(root)
    assert [said.split()[0] for said in removed] == ["container", "container", "volume", "network", "keys"]
    assert (left(root), lab.down(root), lab.running_machines(root)) == (NOTHING, [], ())
    assert not labssh.files_folder(root).exists()
    with pytest.raises(TandemError, match="no lab is up"):
        lab.environment(root)
