"""What the set-up would do on which machine, and what it refuses to do."""

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from pipeline.core.errors import Exit, HostError
from pipeline.core.log import NullLog
from pipeline.host import apt_suite, binfmt, dockerd, install
from pipeline.host.needs import Need

BOOKWORM = {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"}
TRIXIE = {"ID": "debian", "VERSION_ID": "13", "VERSION_CODENAME": "trixie"}
DEB822 = """\
# the mirror next door
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJ

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
BUILDX = Need("buildx", False, "nothing", ">= 0.13", "install docker-buildx")
KEYRING = Need("debian-archive-keyring", False, "nothing", "Debian's keys", "install debian-archive-keyring")
OLD = Need("engine", False, "20.10.24 at /var/run/docker.sock", ">= 26", "upgrade the engine")
AWAY = Need("engine", False, "no answer at tcp://127.0.0.1:1: Connection refused", ">= 26", "start the engine there")
NO_STORE = Need("image store", False, "no engine", "containerd's", "switch the store")
CLASSIC = Need("image store", False, "overlay2 (classic)", "containerd's", "switch the store")


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "apt/sources.list.d/debian.sources").write_text(DEB822)
    return tmp_path / "apt"


def test_debian_12_takes_the_newer_suite_from_its_own_mirror_and_pins_it_low(apt: Path) -> None:
    source, preferences, *_, command = install.install_commands([BUILDX], BOOKWORM, apt)
    assert source.stdin is not None
    assert source.argv == ("tee", str(apt / "sources.list.d/tandem-trixie.sources"))
    assert "http://mirror.example/debian\n" in source.stdin
    assert "Suites: trixie\nComponents: main\n" in source.stdin
    assert "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY865UxYJ\n" in source.stdin
    assert "security" not in source.stdin
    assert preferences.stdin is not None
    assert preferences.stdin.startswith("Package: *\nPin: release n=trixie\nPin-Priority: 50\n")
    assert command.argv[-2:] == ("--no-install-recommends", "docker-buildx")


def test_what_debian_12_has_itself_needs_no_newer_suite(apt: Path) -> None:
    assert "trixie" not in "".join(map(str, install.install_commands([KEYRING], BOOKWORM, apt)))


def test_debian_13_needs_no_second_suite(apt: Path) -> None:
    assert [command for command in install.install_commands([BUILDX], TRIXIE, apt) if command.stdin] == []


@pytest.mark.parametrize("option", ["", "[signed-by=/k.gpg arch=amd64] "])
def test_one_line_sources_keep_their_options(apt: Path, option: str) -> None:
    (apt / "sources.list.d/debian.sources").unlink()
    lines = f"deb-src http://m/debian bookworm main\ndeb {option}http://m/debian bookworm main non-free\n"
    (apt / "sources.list").write_text(lines)
    assert apt_suite.source_file("trixie", "bookworm", apt).text == f"deb {option}http://m/debian trixie main\n"


def test_a_disabled_source_is_not_used_as_a_pattern(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text("Enabled: no\n" + DEB822.partition("\n")[2])
    with pytest.raises(HostError, match="no source for Debian bookworm"):
        apt_suite.source_file("trixie", "bookworm", apt)


def test_a_newer_suite_that_the_owner_added_is_left_to_the_owner(apt: Path) -> None:
    (apt / "sources.list.d/mine.list").write_text("deb [trusted=yes] http://m/debian trixie main\n")
    assert apt_suite.suite_files("trixie", "bookworm", ["x"], apt) == []


def test_a_set_up_that_was_killed_finds_its_own_files_and_writes_them_again(apt: Path) -> None:
    first = apt_suite.suite_files("trixie", "bookworm", ["x"], apt)
    (apt / "preferences.d").mkdir()
    for file in first:
        file.path.write_text(file.text)
    assert apt_suite.suite_files("trixie", "bookworm", ["x"], apt) == first


@pytest.mark.parametrize(
    "system",
    [
        {"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
        {"ID": "debian", "VERSION_ID": "11", "PRETTY_NAME": "Debian 11"},
        {"ID": "fedora", "VERSION_ID": "43", "PRETTY_NAME": "Fedora 43"},
    ],
    ids=lambda system: str(system["ID"]),
)
def test_another_system_is_told_what_to_install(apt: Path, system: dict[str, str]) -> None:
    with pytest.raises(HostError, match=system["PRETTY_NAME"]) as caught:
        install.install_commands([BUILDX, KEYRING], system, apt)
    assert "docker-buildx debian-archive-keyring" in caught.value.hint


def test_debian_testing_has_no_number_and_is_set_up(apt: Path) -> None:
    assert install.install_commands([BUILDX], {"ID": "debian", "VERSION_CODENAME": "forky"}, apt)


def test_the_engines_configuration_keeps_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{"log-level": "warn", "features": {"buildkit": true}}')
    assert json.loads(install.daemon_settings(file)) == {
        "log-level": "warn",
        "features": {"buildkit": True, "containerd-snapshotter": True},
    }
    assert json.loads(install.daemon_settings(tmp_path / "none")) == {"features": {"containerd-snapshotter": True}}


@pytest.mark.parametrize("text", ["{", "[]", '{"features": 1}', ""])
def test_an_unreadable_configuration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "daemon.json").write_text(text)
    with pytest.raises(HostError, match=r"daemon\.json"):
        install.daemon_settings(tmp_path / "daemon.json")


def test_if_nothing_is_missing_nothing_is_logged_or_done() -> None:
    log = NullLog()
    install.set_up(log, needs=lambda: [Need("engine", True, "26", ">= 26")])
    assert log.lines == []


def test_a_forbidden_set_up_gives_the_commands_and_exit_code_4() -> None:
    with pytest.raises(HostError, match="debian-archive-keyring") as caught:
        install.set_up(NullLog(), {"TANDEM_NO_HOST_SETUP": "1"}, lambda: [KEYRING])
    assert caught.value.code == Exit.HOST
    assert "debian-archive-keyring" in caught.value.hint


@pytest.mark.parametrize("more", [[], [KEYRING]], ids=["nothing else", "a package too"])
@pytest.mark.parametrize("unfit", [[OLD], [CLASSIC], [AWAY, NO_STORE]], ids=["old", "classic", "away"])
def test_a_forbidden_set_up_tells_the_owner_of_an_engine_what_to_do(
    unfit: list[Need], more: list[Need], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(HostError) as caught:
        install.set_up(NullLog(), {"TANDEM_NO_HOST_SETUP": "1"}, lambda: [*unfit, *more])
    lines = caught.value.hint.splitlines()
    assert f"{unfit[0].name}: {unfit[0].remedy}" in lines
    assert ("debian-archive-keyring" in lines[-1]) == bool(more)
    assert [line for line in lines if line.endswith("as root:")] == lines[1 : 2 if more else 1]
    assert "docker" not in lines[-1] or not more  # nobody else's engine is started or installed


@pytest.mark.parametrize("unfit", [[OLD], [CLASSIC], [OLD, CLASSIC]], ids=["old", "classic", "both"])
def test_an_unfit_engine_of_another_party_is_refused_with_the_remedy(
    unfit: list[Need], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(HostError) as caught:
        install.set_up(NullLog(), {}, lambda: [*unfit, KEYRING])
    for need in unfit:
        assert need.found in str(caught.value)
        assert need.remedy in caught.value.hint


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user whose docker client talks to a rootless engine."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    meta = tmp_path / ".docker/contexts/meta" / hashlib.sha256(b"rootless").hexdigest()
    meta.mkdir(parents=True)
    (tmp_path / ".docker/config.json").write_text('{"currentContext": "rootless"}')
    endpoint = {"docker": {"Host": "unix:///run/user/1000/docker.sock"}}
    (meta / "meta.json").write_text(json.dumps({"Endpoints": endpoint}))
    return tmp_path


def test_root_gets_the_engine_and_the_docker_folder_of_the_user(home: Path) -> None:
    argv = install.sudo_command({"https_proxy": "http://p:1", "no_proxy": "", "OTHER": "x"})
    told = ["DOCKER_HOST=unix:///run/user/1000/docker.sock", f"DOCKER_CONFIG={home}/.docker", "https_proxy=http://p:1"]
    assert argv == ["sudo", "-n", "env", *told, "no_proxy=", sys.executable, "-B", "-m", "pipeline.host.install"]


def test_a_proxy_s_password_is_not_on_the_command_line_that_sudo_logs(home: Path) -> None:
    proxies = {"http_proxy": "http://me:s3cr3t@p:1", "https_proxy": "http://me:s3cr3t@p:2", "no_proxy": "x"}
    argv = install.sudo_command(proxies)
    assert argv[:4] == ["sudo", "-n", "--preserve-env=http_proxy,https_proxy", "env"]
    assert "no_proxy=x" in argv
    assert "s3cr3t" not in " ".join(argv)
    assert str(home / ".docker") in " ".join(argv)


def test_root_gets_the_engine_that_the_environment_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://spark-1:2375")
    assert "DOCKER_HOST=tcp://spark-1:2375" in install.sudo_command(os.environ)


def test_root_uses_the_usual_engine_whatever_its_own_context_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    words = install.sudo_command(os.environ)
    assert "DOCKER_CONTEXT=default" in words
    assert not [word for word in words if word.startswith("DOCKER_HOST")]


def test_os_release_is_read_as_a_shell_would(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text("# comment\nID=debian\nPRETTY_NAME=\"Debian 'GNU' 12\"\n\n")
    assert install.read_os_release(tmp_path / "os-release") == {"ID": "debian", "PRETTY_NAME": "Debian 'GNU' 12"}


@pytest.mark.parametrize(
    "pid", ["", "x", "4194305", str(os.getpid())], ids=["empty", "no number", "nobody", "another program"]
)
def test_a_stale_pid_file_is_removed_with_the_sockets_of_its_containerd(tmp_path: Path, pid: str) -> None:
    folder = tmp_path / "docker/containerd"
    folder.mkdir(parents=True)
    for file in (tmp_path / "docker.pid", folder / "containerd.pid"):
        file.write_text(pid)
    for name in ("containerd.sock", "containerd.sock.ttrpc", "containerd-debug.sock"):
        (folder / name).touch()
    (folder / "containerd.toml").touch()
    (tmp_path / "docker.sock").mkdir()
    dockerd.remove_leftovers(NullLog(), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["containerd", "containerd.toml", "docker"]


def test_the_emulators_rule_gets_the_flag_that_makes_it_work_in_containers(tmp_path: Path) -> None:
    (tmp_path / "qemu-aarch64.conf").write_text("# made by qemu\n:qemu-aarch64:M::\\x7fELF:\\xff:/usr/bin/q:OP\n")
    assert binfmt.kernel_rule("linux/arm64", tmp_path) == ":qemu-aarch64:M::\\x7fELF:\\xff:/usr/bin/q:OPF"
    (tmp_path / "qemu-aarch64.conf").write_text(":qemu-aarch64:M::\\x7fELF:\\xff:/usr/bin/q:OPF\n")
    assert binfmt.kernel_rule("linux/arm64", tmp_path).endswith(":OPF")
    assert binfmt.kernel_rule("linux/amd64", tmp_path) == ""
