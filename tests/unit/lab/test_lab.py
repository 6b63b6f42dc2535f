"""The lab, as far as it starts nothing."""

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.commands import lab as command
from pipeline.commands import progress as module
from pipeline.core import procs
from pipeline.core.errors import BusyError, Cancelled, ConfigError, HostError, TandemError
from pipeline.core.log import NullLog
from pipeline.graph.code_hash import CodeHashes
from pipeline.graph.stat_cache import StatCache
from pipeline.lab import lab, machine_image, machines, ssh
from pipeline.lab.lab import Machine, MachineStatus
from pipeline.lock import apt
from pipeline.lock.debs import Deb
from pipeline.lock.service_packages import LAB, REGISTRY, ServicePackages

ROOT = Path(__file__).parents[3]
MACHINES = (
    Machine("spark-1", "172.20.0.2", "ssh://root@172.20.0.2", "overlay2"),
    Machine("spark-2", "", "", "overlay2"),
)


def test_ssh_uses_the_lab_s_files_for_its_machines_and_the_user_s_own_for_other_hosts(tmp_path: Path) -> None:
    text = ssh.ssh_config(tmp_path / "a b", {"172.20.0.2": "k1", "172.20.0.3": "k2"})
    ours, others = text.split("Host * ")
    assert ours.startswith("Host 172.20.0.2 172.20.0.3\n")
    assert f'IdentityFile "{tmp_path}/a b/id_ed25519"' in ours
    assert "StrictHostKeyChecking yes" in ours
    assert "IdentityAgent none" in ours
    assert others.splitlines()[0] == "!172.20.0.2 !172.20.0.3"
    assert [line.strip() for line in others.splitlines()[1:]] == [
        "Include ~/.ssh/config",
        "Include /etc/ssh/ssh_config",
    ]


def test_the_files_of_ssh_are_the_owner_s_alone(tmp_path: Path) -> None:
    ssh.write_files(tmp_path, "/usr/bin/ssh", {"172.20.0.2": "ssh-ed25519 AAAA"})
    assert (tmp_path / "known_hosts").read_text() == "172.20.0.2 ssh-ed25519 AAAA\n"
    script = tmp_path / "bin/ssh"
    assert script.read_text() == f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path}/config "$@"\n'
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {"known_hosts": 0o600, "config": 0o600, "ssh": 0o700}


def test_a_percent_sign_in_a_path_is_doubled_for_ssh(tmp_path: Path) -> None:
    text = ssh.ssh_config(tmp_path / "100%d", {"172.20.0.2": "k1"})
    assert f'IdentityFile "{tmp_path}/100%%d/id_ed25519"' in text
    assert f'UserKnownHostsFile "{tmp_path}/100%%d/known_hosts"' in text


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a${HOME}b", "a:b"])
def test_a_path_that_ssh_cannot_use_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HostError, match="in its name") as caught:
        ssh.find_programs(tmp_path / name)
    assert "move the checkout" in caught.value.hint


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_machine_s_own_ssh_is_found_behind_that_of_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = program(tmp_path / "artifacts/lab/bin/ssh")
    real = program(tmp_path / "real/ssh")
    program(tmp_path / "real/ssh-keygen")
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{real.parent}")
    assert ssh.find_programs(tmp_path) == str(real)


def test_a_missing_ssh_is_reported_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError) as caught:
        ssh.find_programs(tmp_path)
    assert "openssh-client" in caught.value.hint


@pytest.mark.parametrize(
    ("store", "snapshotter", "driver"), [("containerd", True, "overlayfs"), ("overlay2", False, "overlay2")]
)
def test_daemon_json_has_the_store_and_a_registry_without_tls(store: str, snapshotter: bool, driver: str) -> None:
    said = json.loads(machines.daemon_json(store))
    assert said["features"] == {"containerd-snapshotter": snapshotter}
    assert said["storage-driver"] == driver
    assert said["insecure-registries"] == ["registry.lab:5000"]


def test_each_checkout_has_a_lab_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert lab.lab_id(tmp_path / "a") != lab.lab_id(tmp_path / "b")
    assert lab.lab_id(tmp_path / "a") == lab.lab_id(tmp_path / "link")
    assert machines.engine_name("abc", "spark-1") == "tandem-lab-abc-spark-1"


def test_the_image_s_name_follows_from_its_packages_and_our_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = LAB.read(ROOT)
    name = machine_image.image_name(locked)
    assert re.fullmatch(r"tandem/lab:[0-9a-f]{12}", name)
    assert machine_image.image_name(locked[::-1]) == name
    assert machine_image.image_name(locked[1:]) != name
    for file, _ in machine_image.FILES.values():
        (tmp_path / file).write_bytes((machine_image.PROBES / file).read_bytes())
    monkeypatch.setattr(machine_image, "PROBES", tmp_path)
    assert machine_image.image_name(locked) == name
    (tmp_path / "start").write_text("exec sleep infinity\n")
    assert machine_image.image_name(locked) != name


def test_the_image_s_name_follows_from_all_code_that_writes_its_root(tmp_path: Path) -> None:
    reached = CodeHashes(ROOT, StatCache(tmp_path / "stats.json")).of(["pipeline.lab.machine_image"])
    writers = {name for name in reached if name.startswith("pipeline.image.")}
    assert writers == {module.__name__ for module in machine_image.DECIDE_BYTES}


@pytest.mark.parametrize("wanted", [LAB, REGISTRY])
def test_a_lock_holds_what_is_asked_for_on_both_kinds_of_machine(wanted: ServicePackages) -> None:
    locked = wanted.read(ROOT)
    for arch in ("amd64", "arm64"):
        assert set(wanted.packages) <= {deb.name for deb in locked if deb.arch in (arch, "all")}


def test_a_lock_that_is_not_there_or_none_is_a_matter_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lockfiles/lab.debs.txt: not a lock"):
        LAB.read(tmp_path)
    with pytest.raises(ConfigError, match="there is no such lock"):
        LAB.lock(tmp_path, "frozen", NullLog())


@pytest.mark.parametrize("mode", ["", "frozen", "upgrade:torch", "upgrade:torch,ray"])
def test_a_lock_stays_if_nothing_in_it_is_meant(mode: str) -> None:
    assert REGISTRY.lock(ROOT, mode, NullLog()) == REGISTRY.read(ROOT)


def test_of_a_lock_only_what_is_named_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lockfiles").mkdir()
    (tmp_path / REGISTRY.path).write_bytes((ROOT / REGISTRY.path).read_bytes())
    asked = []

    class Apt:
        def resolve(self, packages: Sequence[str], pins: Sequence[Deb] = ()) -> tuple[Deb, ...]:
            asked.append({pin.name for pin in pins})
            return REGISTRY.read(ROOT)

    monkeypatch.setattr(apt, "private_apt", lambda *_: nullcontext(Apt()))
    REGISTRY.lock(tmp_path, "upgrade:libc6", NullLog())
    REGISTRY.lock(tmp_path, "upgrade", NullLog())
    every = {deb.name for deb in REGISTRY.read(ROOT)}
    assert asked == [every - {"libc6"}] * 2 + [set()] * 2


def test_a_machine_for_which_nothing_is_locked_is_refused() -> None:
    locked = [deb for deb in LAB.read(ROOT) if deb.arch == "all"]
    with pytest.raises(HostError, match="nothing is locked for"):
        LAB.of_this_machine(locked, hint="")


def test_a_wrong_store_and_a_wrong_number_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--store zfs"):
        lab.up(tmp_path, NullLog(), store="zfs")
    with pytest.raises(ConfigError, match="--machines 99"):
        lab.up(tmp_path, NullLog(), count=99)
    assert list(tmp_path.iterdir()) == []


def test_no_lab_has_no_environment(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="no lab is up"):
        lab.environment(tmp_path)


def test_the_lab_s_ssh_comes_first_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    ssh.files_folder(tmp_path).mkdir(parents=True)
    ssh.write_files(ssh.files_folder(tmp_path), "/usr/bin/ssh", {"172.20.0.2": "k"})
    assert lab.environment(tmp_path) == {"PATH": f"{tmp_path}/artifacts/lab/bin:/usr/bin"}


class Stub:
    """A lab that takes a moment to come up and to go; it notes what is done with it, and on whose PATH."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, there: bool = False) -> None:
        self.there, self.done = there, list[str]()
        monkeypatch.setattr(lab, "running_machines", lambda _: MACHINES if self.there else ())
        monkeypatch.setattr(lab, "_bring_up", lambda *_: self.note("up", True))
        monkeypatch.setattr(lab, "_remove", lambda _: self.note("down", False))
        monkeypatch.setattr(lab, "environment", lambda _: {"PATH": f"/lab:{os.environ['PATH']}"})
        monkeypatch.setenv("PATH", "/usr/bin")
        self.root = root

    def note(self, what: str, there: bool) -> tuple[Machine, ...]:
        time.sleep(0.05)
        self.there = there
        self.done.append(what)
        return MACHINES

    def use(self, log: NullLog, other: NullLog | None = None) -> None:
        """Use it for a while, and who comes first until the other has something to say."""
        with lab.lab_in_use(self.root, "", log):
            for _ in range(2):
                self.done.append(f"{os.environ['PATH']} {self.there}")
                time.sleep(0.1)
            until = time.monotonic() + 20
            while other and not other.lines and "down" not in self.done and time.monotonic() < until:
                time.sleep(0.05)


def test_two_users_of_a_lab_wait_for_each_other_and_path_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, logs = Stub(tmp_path, monkeypatch), (NullLog(), NullLog())
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(stub.use, logs, reversed(logs)))
    one = ["up", "/lab:/usr/bin True", "/lab:/usr/bin True", "down"]
    assert stub.done == one * 2
    assert os.environ["PATH"] == "/usr/bin"
    (said,) = logs[0].lines + logs[1].lines
    assert said.startswith(f"waiting: the lab of this checkout is in use by process {os.getpid()}, since 2")


def test_a_lab_that_was_up_before_stays_whoever_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(tmp_path, monkeypatch, there=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(stub.use, (NullLog(), NullLog())))
    assert "down" not in stub.done


def test_a_lab_is_not_taken_down_under_its_user_and_an_interrupted_wait_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub(tmp_path, monkeypatch)
    try:
        with lab.lab_in_use(tmp_path, "", NullLog()), ThreadPoolExecutor(1) as pool:
            with pytest.raises(BusyError, match=f"in use by process {os.getpid()}"):
                lab.down(tmp_path)
            waits = pool.submit(lab.up, tmp_path, NullLog())
            time.sleep(0.3)
            assert not waits.done()
            procs.cancel()
            with pytest.raises(Cancelled):
                waits.result(timeout=20)
    finally:
        procs.resume()
    assert stub.done == ["up", "down"]


def test_a_lab_that_cannot_be_reached_is_taken_down_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub(tmp_path, monkeypatch)

    def broken(_: Path) -> dict[str, str]:
        raise TandemError("no lab is up")

    monkeypatch.setattr(lab, "environment", broken)
    with pytest.raises(TandemError, match="no lab is up"):
        stub.use(NullLog())
    assert (stub.done, os.environ["PATH"]) == (["up", "down"], "/usr/bin")


def test_ps_shows_a_row_a_machine() -> None:
    looks = (MachineStatus(MACHINES[0], "running", "26.1.5"), MachineStatus(MACHINES[1], "exited", ""))
    answer = command.as_json(looks, "/c/artifacts/lab/bin")
    assert answer == {
        "schema": 1,
        "registry": "registry.lab:5000",
        "path": "/c/artifacts/lab/bin",
        "machines": [
            {
                "name": "spark-1", "address": "172.20.0.2", "endpoint": "ssh://root@172.20.0.2",
                "store": "overlay2", "engine": "26.1.5", "state": "running",
            },
            {"name": "spark-2", "address": "", "endpoint": "", "store": "overlay2", "engine": "", "state": "exited"},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "doit lab: name an action: up, down or ps"),
        (["upp"], "doit lab upp: name an action: up, down or ps"),
        (["up", "now"], "takes no 'now' after 'up'"),
        (["up", "--json"], "doit lab up has no option --json"),
        (["down", "--store", "overlay2"], "doit lab down has no option --store"),
        (["ps", "--machines", "3"], "doit lab ps has no option --machines"),
    ],
)
def test_words_that_the_command_does_not_know_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.LabCommand().parse_execute(words) == 3
    assert said in capsys.readouterr().err


def test_progress_is_said_from_time_to_time_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = module.TerminalLog()
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_S", 0)
    shown.progress("spark-1", 2, 8, "s")
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_S", 3600)
    shown.progress("spark-1", 3, 8, "s")
    shown.line("done")
    shown.close()
    first, second = capsys.readouterr().err.splitlines()
    assert "spark-1" in first
    assert second == "done"


def test_progress_is_drawn_over_itself_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = module.TerminalLog()
    shown.progress("spark-1", 2, 8, "s")
    shown.line("done")
    drawn, rest = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert "spark-1" in drawn
    assert rest == "done\n"
