"""What the set-up would do on which machine, and what it refuses to do."""

import json
import os
from pathlib import Path

import pytest

from pipeline import aptsuite, binfmt, engined, hostsetup
from pipeline.errors import Exit, HostError
from pipeline.host import Need
from pipeline.log import NullLog

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
MMDEBSTRAP = Need("mmdebstrap", False, "nothing", "on PATH", "install mmdebstrap")
OLD = Need("engine", False, "20.10.24 at /var/run/docker.sock", ">= 26", "upgrade the engine")
CLASSIC = Need("image store", False, "overlay2 (classic)", "containerd's", "switch the store")


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "apt/sources.list.d/debian.sources").write_text(DEB822)
    return tmp_path / "apt"


def test_debian_12_takes_the_newer_suite_from_its_own_mirror_and_pins_it_low(apt: Path) -> None:
    source, preferences, *_, install = hostsetup.commands([BUILDX], BOOKWORM, apt)
    assert source.stdin is not None
    assert source.argv == ("tee", str(apt / "sources.list.d/tandem-trixie.sources"))
    assert "http://mirror.example/debian\n" in source.stdin
    assert "Suites: trixie\nComponents: main\n" in source.stdin
    assert "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY865UxYJ\n" in source.stdin
    assert "security" not in source.stdin
    assert preferences.stdin is not None
    assert preferences.stdin.startswith("Package: *\nPin: release n=trixie\nPin-Priority: 50\n")
    assert install.argv[-2:] == ("--no-install-recommends", "docker-buildx")


def test_what_debian_12_has_itself_needs_no_newer_suite(apt: Path) -> None:
    assert "trixie" not in "".join(map(str, hostsetup.commands([MMDEBSTRAP], BOOKWORM, apt)))


def test_debian_13_needs_no_second_suite(apt: Path) -> None:
    assert [command for command in hostsetup.commands([BUILDX], TRIXIE, apt) if command.stdin] == []


@pytest.mark.parametrize("option", ["", "[signed-by=/k.gpg arch=amd64] "])
def test_one_line_sources_keep_their_options(apt: Path, option: str) -> None:
    (apt / "sources.list.d/debian.sources").unlink()
    lines = f"deb-src http://m/debian bookworm main\ndeb {option}http://m/debian bookworm main non-free\n"
    (apt / "sources.list").write_text(lines)
    assert aptsuite.source("trixie", "bookworm", apt).text == f"deb {option}http://m/debian trixie main\n"


def test_a_switched_off_source_is_no_pattern(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text("Enabled: no\n" + DEB822.partition("\n")[2])
    with pytest.raises(HostError, match="no source for Debian bookworm"):
        aptsuite.source("trixie", "bookworm", apt)


def test_a_newer_suite_that_the_owner_added_is_left_to_the_owner(apt: Path) -> None:
    (apt / "sources.list.d/mine.list").write_text("deb [trusted=yes] http://m/debian trixie main\n")
    assert aptsuite.beside("trixie", "bookworm", ["x"], apt) == []


def test_a_set_up_that_was_killed_finds_its_own_files_and_writes_them_again(apt: Path) -> None:
    first = aptsuite.beside("trixie", "bookworm", ["x"], apt)
    (apt / "preferences.d").mkdir()
    for file in first:
        file.path.write_text(file.text)
    assert aptsuite.beside("trixie", "bookworm", ["x"], apt) == first


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
        hostsetup.commands([BUILDX, MMDEBSTRAP], system, apt)
    assert "docker-buildx mmdebstrap" in caught.value.hint


def test_debian_testing_has_no_number_and_is_set_up(apt: Path) -> None:
    assert hostsetup.commands([BUILDX], {"ID": "debian", "VERSION_CODENAME": "forky"}, apt)


def test_the_engines_configuration_keeps_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{"log-level": "warn", "features": {"buildkit": true}}')
    assert json.loads(hostsetup.with_features(file)) == {
        "log-level": "warn",
        "features": {"buildkit": True, "containerd-snapshotter": True},
    }
    assert json.loads(hostsetup.with_features(tmp_path / "none")) == {"features": {"containerd-snapshotter": True}}


@pytest.mark.parametrize("text", ["{", "[]", '{"features": 1}', ""])
def test_an_unreadable_configuration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "daemon.json").write_text(text)
    with pytest.raises(HostError, match=r"daemon\.json"):
        hostsetup.with_features(tmp_path / "daemon.json")


def test_nothing_missing_means_nothing_said_and_nothing_done() -> None:
    log = NullLog()
    hostsetup.set_up(log, needs=lambda: [Need("engine", True, "26", ">= 26")])
    assert log.lines == []


def test_a_forbidden_set_up_gives_the_commands_and_exit_code_4() -> None:
    with pytest.raises(HostError, match="mmdebstrap") as caught:
        hostsetup.set_up(NullLog(), {"TANDEM_NO_HOST_SETUP": "1"}, lambda: [MMDEBSTRAP])
    assert caught.value.code == Exit.HOST
    assert "mmdebstrap" in caught.value.hint


@pytest.mark.parametrize("unfit", [[OLD], [CLASSIC], [OLD, CLASSIC]], ids=["old", "classic", "both"])
def test_an_engine_of_somebody_else_is_refused_with_the_remedy(
    unfit: list[Need], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(HostError) as caught:
        hostsetup.set_up(NullLog(), {}, lambda: [*unfit, MMDEBSTRAP])
    for need in unfit:
        assert need.found in str(caught.value)
        assert need.remedy in caught.value.hint


def test_os_release_is_read_as_a_shell_would(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text("# comment\nID=debian\nPRETTY_NAME=\"Debian 'GNU' 12\"\n\n")
    assert hostsetup.os_release(tmp_path / "os-release") == {"ID": "debian", "PRETTY_NAME": "Debian 'GNU' 12"}


@pytest.mark.parametrize(
    "pid", ["", "x", "4194305", str(os.getpid())], ids=["empty", "no number", "nobody", "another program"]
)
def test_a_pid_file_that_names_no_engine_is_removed_with_the_sockets_of_its_containerd(
    tmp_path: Path, pid: str
) -> None:
    folder = tmp_path / "docker/containerd"
    folder.mkdir(parents=True)
    for file in (tmp_path / "docker.pid", folder / "containerd.pid"):
        file.write_text(pid)
    for name in ("containerd.sock", "containerd.sock.ttrpc", "containerd-debug.sock"):
        (folder / name).touch()
    (folder / "containerd.toml").touch()
    (tmp_path / "docker.sock").mkdir()
    engined.clear(NullLog(), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["containerd", "containerd.toml", "docker"]


def test_the_emulators_rule_gets_the_flag_that_makes_it_work_in_containers(tmp_path: Path) -> None:
    (tmp_path / "qemu-aarch64.conf").write_text("# made by qemu\n:qemu-aarch64:M::\\x7fELF:\\xff:/usr/bin/q:OP\n")
    assert binfmt.rule("linux/arm64", tmp_path) == ":qemu-aarch64:M::\\x7fELF:\\xff:/usr/bin/q:OPF"
    (tmp_path / "qemu-aarch64.conf").write_text(":qemu-aarch64:M::\\x7fELF:\\xff:/usr/bin/q:OPF\n")
    assert binfmt.rule("linux/arm64", tmp_path).endswith(":OPF")
    assert binfmt.rule("linux/amd64", tmp_path) == ""
