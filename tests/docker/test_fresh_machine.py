"""A machine as it comes from the installer: Debian with Python and nothing else, in a privileged container."""

import base64
import configparser
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.core import procs
from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.host import apt_suite, install

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(1800)
HOME = "/srv/a checkout"  # with a space, as people have them
CA = "/usr/local/share/host-ca.crt"


@dataclass(frozen=True)
class Machine:
    """A container that plays a machine."""

    name: str

    def sh(self, script: str, *, within: float = 300) -> str:
        """What a script prints (stdout and stderr); ProgramError if it fails."""
        return procs.run(
            ["docker", "exec", self.name, "sh", "-ec", script], log=NullLog(), inherit=procs.DOCKER, timeout_s=within
        )

    def doitw(self, words: str, **options: float) -> str:
        """What ./doitw says."""
        return self.sh(f'cd "{HOME}"; ./doitw {words}', **options)

    def fails(self, script: str, status: int) -> str:
        """What a script prints that must end with a status."""
        with pytest.raises(procs.ProgramError) as caught:
            self.sh(script)
        assert caught.value.status == status, caught.value.output
        return caught.value.output

    def packages(self) -> str:
        return self.sh("dpkg-query --show")


def apt_settings() -> list[str]:
    """How this machine's apt reaches its mirrors (proxies, clock checks), for the new one."""
    return re.findall(
        r"^Acquire::(?:https?::|Check-).*$", procs.capture(["apt-config", "dump"], inherit=procs.NETWORK), re.MULTILINE
    )


def pip_settings() -> dict[str, str]:
    """How this machine's pip reaches its index, as environment variables."""
    kept = ("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "http_proxy", "https_proxy", "no_proxy")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    files = configparser.ConfigParser(interpolation=None)
    files.read(["/etc/pip.conf", Path.home() / ".pip/pip.conf", Path.home() / ".config/pip/pip.conf"])
    if index := files.get("global", "index-url", fallback=""):
        found.setdefault("PIP_INDEX_URL", index)
    return found


def certificates() -> Path | None:
    """The CA bundle that this machine's pip trusts, if it is not pip's own."""
    named = [os.environ.get(name) for name in ("PIP_CERT", "SSL_CERT_FILE")]
    return next((Path(name) for name in named if name and Path(name).is_file()), None)


def root_filesystem(suite: str, folder: Path) -> Path:
    """A tar of a minimal Debian with Python, made by mmdebstrap, which is installed if this machine lacks it."""
    if procs.which("mmdebstrap") is None:
        get = [*install.APT_GET, "-y", "install", "--no-install-recommends", "mmdebstrap"]
        procs.run(get, log=NullLog(), inherit=procs.NETWORK)
    folder.mkdir(exist_ok=True)
    own = install.read_os_release()["VERSION_CODENAME"]
    source = apt_suite.source_file(suite, own)
    (folder / source.path.name).write_text(source.text)
    tar = folder / "root.tar"
    options = [f"--aptopt={line}" for line in apt_settings()]
    where = [suite, str(tar), str(folder / source.path.name)]
    procs.run(
        ["mmdebstrap", "--variant=apt", "--include=python3", *options, *where],
        log=NullLog(),
        inherit=procs.NETWORK,
        timeout_s=600,
    )
    return tar


def checkout(folder: Path) -> Path:
    """What git would hand to a new clone, and what is not committed yet."""
    names = procs.capture(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], inherit=procs.DOCKER, cwd=ROOT
    )
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@contextmanager
def new_machine(suite: str, folder: Path) -> Iterator[Machine]:
    name = f"tandem-test-machine-{suite}-{os.getpid()}"
    bundle = certificates()
    trust = ["-v", f"{bundle}:{CA}:ro", "-e", f"PIP_CERT={CA}"] if bundle else []
    settings = [word for key, value in pip_settings().items() for word in ("-e", f"{key}={value}")]
    # Its own engine, network and /run, but the machine's cgroups: an engine within needs all controllers.
    kind = ["--privileged", "--cgroupns", "host", "--tmpfs", "/run", "-v", "/var/lib/docker"]
    try:
        procs.run(["docker", "import", str(root_filesystem(suite, folder)), name], log=NullLog(), inherit=procs.DOCKER)
        start = ["docker", "run", "-d", "--name", name, *kind, *trust, *settings, name, "sleep", "infinity"]
        procs.run(start, log=NullLog(), inherit=procs.DOCKER)
        procs.run(["docker", "exec", name, "mkdir", "-p", HOME], log=NullLog(), inherit=procs.DOCKER)
        copy = checkout(folder / "checkout")
        procs.run(["docker", "cp", f"{copy}/.", f"{name}:{HOME}"], log=NullLog(), inherit=procs.DOCKER)
        yield Machine(name)
    finally:
        for argv in (["rm", "-f", "-v", name], ["rmi", "-f", name]):
            procs.run(["docker", *argv], log=NullLog(), inherit=procs.DOCKER)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Debian 12: the release that needs a second suite, and whose Python came without ensurepip."""
    with new_machine("bookworm", tmp_path_factory.mktemp("bookworm")) as made:
        yield made


@pytest.fixture
def equipped(machine: Machine) -> Machine:
    """The machine after its set-up, which costs nothing if it was made before."""
    machine.doitw("set-up", within=600)
    return machine


def test_tooling_is_made_without_ensurepip_and_again_after_a_kill_and_once_for_two_callers(machine: Machine) -> None:
    before = machine.packages()
    assert "ModuleNotFoundError" in machine.fails("python3 -c 'import ensurepip'", 1)
    # As soon as there is something to leave behind.
    kill = "python3 -c 'import os, sys; os.killpg(int(sys.argv[1]), 9)' $!"
    killed = f"setsid ./doitw --version & until [ -e .venv/bin/python ]; do sleep 0.05; done; {kill}; wait $!"
    machine.fails(f'cd "{HOME}"; {killed}', 137)
    assert machine.sh(f'cd "{HOME}"; ls .venv/tandem 2>/dev/null || echo not made') == "not made"
    both = machine.sh(f'cd "{HOME}"; ./doitw --version >/dev/null & ./doitw --version; wait $!')
    assert both.count("tooling: .venv from lockfiles/tooling.txt: done") == 1
    assert "lib @" in both
    assert machine.packages() == before


def test_a_second_call_only_starts_doit(machine: Machine) -> None:
    """`benchmarks/noop.py` shows how long that takes."""
    machine.doitw("--version")
    kept = f'cd "{HOME}"; find .venv -newer /srv/marker -not -name "*.pyc" -not -type d'
    machine.sh(f'cd "{HOME}"; touch /srv/marker; env -i PATH=/usr/bin:/bin ./doitw --version')
    assert machine.sh(kept) == ""


def test_doit_finds_its_plugins_from_a_folder_below_and_words_arrive_as_they_were(machine: Machine) -> None:
    activated = f'cd "{HOME}"; . .venv/bin/activate; cd pipeline'
    assert '"found"' in machine.fails(f"{activated}; doit host --json", 4)
    assert '"found"' in machine.fails(f'cd /; "{HOME}/doitw" host --json', 4)
    machine.sh("mkdir -p /srv/other; echo 'def task_x(): return {\"actions\": []}' >/srv/other/dodo.py")
    words = "-f /srv/other/dodo.py 'a  \"b'"
    assert "'a  \"b' is not a task" in machine.fails(f'cd "{HOME}"; ./doitw list {words}', 3)
    assert machine.sh(f'cd "{HOME}"; find . -newer .venv/tandem/root -not -path "*/__pycache__*" -type f') == ""


def test_looking_and_a_forbidden_set_up_say_what_is_missing_and_install_nothing(machine: Machine) -> None:
    before = machine.packages()
    table = machine.fails(f'cd "{HOME}"; ./doitw host', 4)
    for need in ("engine", "buildx", "docker client", "ssh client"):
        assert re.search(rf"^MISSING +{need} ", table, re.MULTILINE), table
    said = machine.fails(f'cd "{HOME}"; TANDEM_NO_HOST_SETUP=1 ./doitw build', 4)
    assert re.search("apt-get .* install .* docker.io", said), said
    assert machine.packages() == before


def test_the_set_up_brings_an_engine_that_runs_foreign_code(machine: Machine) -> None:
    machine.doitw("set-up", within=600)
    assert "MISSING" not in machine.doitw("host")
    assert "io.containerd.snapshotter.v1" in machine.sh("docker info")
    runs_foreign_code(machine)


def test_a_second_set_up_touches_nothing(equipped: Machine) -> None:
    watched = "cat /var/run/docker.pid /etc/docker/daemon.json /var/log/apt/history.log; ls -lR --full-time /etc/apt"
    before = equipped.sh(watched)
    assert equipped.doitw("set-up") == ""
    assert equipped.sh(watched) == before


def test_runc_and_libc_stay_those_of_the_release(equipped: Machine) -> None:
    versions = dict(line.split("\t") for line in equipped.packages().splitlines())
    kept = [version for name, version in versions.items() if name.partition(":")[0] in {"libc6", "runc", "systemd"}]
    assert len(kept) >= 2
    assert not [version for version in kept if "deb13" in version or version.startswith("2.4")]


def killed(machine: Machine) -> None:
    """Kill its engine, and wait until it has ended."""
    ended = '[ ! -e /proc/$pid ] || grep -q "^State:.Z" /proc/$pid/status'
    machine.sh(f"pid=$(cat /var/run/docker.pid); kill -9 $pid; until {ended}; do sleep 0.1; done")


@pytest.mark.parametrize("left", ["its own", "a number that another process has now"])
def test_what_a_killed_engine_left_behind_does_not_stop_the_next(equipped: Machine, left: str) -> None:
    equipped.sh("docker run -d --name tandem-left --platform linux/arm64 exits-42 || true")
    pid = equipped.sh("cat /var/run/docker.pid")
    killed(equipped)
    if left != "its own":
        number = equipped.sh("sleep 1000 >/dev/null 2>&1 & echo $!")
        files = "/run/docker.pid /run/docker/containerd/containerd.pid"
        equipped.sh(f"mkdir -p /run/docker/containerd; echo {number} | tee {files}")
    said = equipped.doitw("set-up")
    assert "left behind by a dockerd that is gone" in said
    assert equipped.sh("cat /var/run/docker.pid") != pid
    assert "exits-42" in equipped.sh("docker ps -a")
    equipped.sh("docker rm -f tandem-left")
    runs_foreign_code(equipped)


def test_two_set_ups_at_once_start_one_engine(equipped: Machine) -> None:
    killed(equipped)
    said: list[str] = []
    both = [threading.Thread(target=lambda: said.append(equipped.doitw("set-up"))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(said) == 2
    assert "".join(said).count("starting the Docker engine: done") == 1


def test_an_engine_that_does_not_fit_is_refused_and_left_as_it_is(equipped: Machine) -> None:
    """The same engine with the classic store, as somebody else may have it."""
    equipped.sh("kill $(cat /var/run/docker.pid); while test -e /var/run/docker.pid; do sleep 0.2; done")
    equipped.sh("mv /etc/docker/daemon.json /srv/kept; setsid --fork dockerd </dev/null >/dev/null 2>&1")
    answers(equipped)
    pid = equipped.sh("cat /var/run/docker.pid")
    said = equipped.fails(f'cd "{HOME}"; ./doitw set-up', 4)
    assert "containerd-snapshotter" in said
    assert equipped.sh("cat /var/run/docker.pid") == pid
    assert "daemon.json" not in equipped.sh("ls /etc/docker")


def test_debian_13_is_set_up_from_its_own_suite(tmp_path: Path) -> None:
    with new_machine("trixie", tmp_path / "trixie") as machine:
        machine.doitw("set-up", within=600)
        assert "MISSING" not in machine.doitw("host")
        runs_foreign_code(machine)
        assert machine.sh("find /etc/apt -name 'tandem-*'") == ""
        assert machine.doitw("set-up") == ""


def runs_foreign_code(machine: Machine) -> None:
    """Build and run an arm64 program whose only deed is to end with status 42."""
    program = base64.b64encode(foreign_program()).decode()
    machine.sh(
        "rm -rf /srv/foreign; mkdir /srv/foreign; cd /srv/foreign; "
        f"echo {program} | base64 -d >program; chmod 755 program; "
        "printf 'FROM scratch\\nCOPY program /program\\nENTRYPOINT [\"/program\"]\\n' >Dockerfile; "
        "docker buildx build --platform linux/arm64 --provenance=false --load -t exits-42 ."
    )
    machine.fails("docker run --rm --platform linux/arm64 exits-42", 42)


def foreign_program() -> bytes:
    """An ELF64 file for aarch64: header, one segment, and `exit(42)` (mov x0, #42; mov x8, #93; svc #0)."""
    code = struct.pack("<III", 0xD2800540, 0xD2800BA8, 0xD4000001)
    start, size = 0x400000, 64 + 56
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 183, 1, start + size, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, start, start, size + len(code), size + len(code), 0x1000)
    return header + segment + code


def answers(machine: Machine) -> None:
    for _ in range(60):
        try:
            machine.sh("docker info")
        except TandemError:
            time.sleep(0.5)
        else:
            return
    pytest.fail("the engine does not answer")
