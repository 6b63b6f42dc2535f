"""The root filesystem: what of a package goes in, what is made besides, and that the bytes are the same each time."""

import tarfile
from pathlib import Path

import pytest

from pipeline.core import store
from pipeline.core.errors import TandemError
from pipeline.image import deb, maintainer_files
from pipeline.image.rootfs import RootfsWriter
from tests import tinydeb

EPOCH = 1_790_000_000
PASSWD = b"root:*:0:0:root:/root:/bin/bash\ndaemon:*:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
GROUP = b"root:*:0:\nshadow:*:42:\n"
BASE = {
    "usr": None,
    "usr/bin": None,
    "usr/bin/dash": b"#!",
    "usr/bin/bash": b"#!",
    "usr/bin/gcc": "gcc-14",
    "usr/bin/gcc-14": b"ELF",
    "usr/bin/mawk": b"ELF",
    "lib/old.so": b"ELF",
    "var/run": None,
    "var/log": None,
    "var/log/apt.log": b"2020-01-01",
    "usr/bin/su": 0o4755,
    "usr/share/doc/a/copyright": b"free",
    "usr/share/doc/a/changelog.gz": b"long",
    "usr/share/man/man1/a.1.gz": b"long",
    "usr/share/locale/de/a.mo": b"lang",
    maintainer_files.PASSWD: PASSWD,
    maintainer_files.GROUP: GROUP,
    "usr/share/ca-certificates/mozilla/B.crt": b"-B-",
    "usr/share/ca-certificates/mozilla/A.crt": b"-A-\n",
    "usr/lib/python3.13/abc.py": b"1\n",
}


def build(folder: Path, *packages: dict[str, bytes | str | int | None]) -> tuple[Path, dict[str, bytes]]:
    """A rootfs from packages named a, b, …, finished; and the content that was kept aside."""
    kept: dict[str, bytes] = {}
    tar = folder / "rootfs.tar"
    with RootfsWriter(tar, EPOCH) as root:
        for name, entries in zip("abc", packages, strict=False):
            path = folder / f"{name}.deb"
            tinydeb.make(path, name, entries)
            with deb.data(path) as archive:
                root.add_package(name, archive, lambda path, file: kept.update({path: file.read()}))
        root.add_maintainer_files(kept)
    return tar, kept


@pytest.fixture
def members(tmp_path: Path) -> dict[str, tarfile.TarInfo]:
    tar, _ = build(tmp_path, dict(BASE))
    with tarfile.open(tar) as archive:
        return {member.name: member for member in archive}


def test_each_path_is_there_once_and_after_its_folder(tmp_path: Path) -> None:
    tar, _ = build(tmp_path, dict(BASE))
    with tarfile.open(tar) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names))
    seen = {""}
    for name in names:
        assert name.rpartition("/")[0] in seen, name
        seen.add(name)


def test_times_are_the_epoch_and_owners_have_no_names(members: dict[str, tarfile.TarInfo]) -> None:
    assert {member.mtime for member in members.values()} == {EPOCH}
    assert {(member.uname, member.gname) for member in members.values()} == {("", "")}


def test_modes_are_the_packages_own_setuid_included(members: dict[str, tarfile.TarInfo]) -> None:
    assert members["usr/bin/su"].mode == 0o4755
    assert members["tmp"].mode == members["var/tmp"].mode == 0o1777
    assert members["root"].mode == 0o700


def test_usr_is_merged(members: dict[str, tarfile.TarInfo]) -> None:
    assert members["usr/lib/old.so"].isreg()
    assert (members["bin"].linkname, members["lib"].linkname) == ("usr/bin", "usr/lib")
    assert "lib64" not in members
    assert members["var/run"].linkname == "/run"


def test_files_that_software_expects_of_maintainer_scripts_exist(members: dict[str, tarfile.TarInfo]) -> None:
    assert members["usr/bin/sh"].linkname == "dash"
    assert members["usr/bin/cc"].linkname == "/etc/alternatives/cc"
    assert members["etc/alternatives/cc"].linkname == "/usr/bin/gcc"
    assert members["usr/bin/awk"].linkname == "/etc/alternatives/awk"
    assert "usr/bin/c++" not in members
    assert members["etc/ssl/certs/A.pem"].linkname == "/usr/share/ca-certificates/mozilla/A.crt"


def test_the_root_has_nothing_of_this_machine_or_of_today(members: dict[str, tarfile.TarInfo]) -> None:
    absent = {"etc/hostname", "etc/resolv.conf", "etc/ld.so.cache", "var/log/apt.log", "etc/machine-id"}
    assert not absent & members.keys()
    assert not any(name.startswith("dev/") for name in members)


def test_manuals_and_translations_are_left_out_but_copyrights_stay(members: dict[str, tarfile.TarInfo]) -> None:
    assert "usr/share/doc/a/copyright" in members
    gone = ("changelog.gz", "a.1.gz", "a.mo")
    assert not [name for name in members if name.endswith(gone)]


def test_users_come_from_the_masters_and_have_no_day_and_no_password(tmp_path: Path) -> None:
    tar, _ = build(tmp_path, dict(BASE))
    with tarfile.open(tar) as archive:
        text = {
            name: file.read().decode()
            for name in ("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow")
            if (file := archive.extractfile(name)) is not None
        }
        shadow = archive.getmember("etc/shadow")
    assert text["etc/passwd"].startswith("root:x:0:0:root:/root:/bin/bash\n")
    assert text["etc/group"] == "root:x:0:\nshadow:x:42:\n"
    assert text["etc/shadow"] == "root:*::0:99999:7:::\ndaemon:*::0:99999:7:::\n"
    assert (shadow.mode, shadow.gid) == (0o640, 42)


def test_the_certificate_bundle_holds_each_certificate_on_lines_of_its_own(tmp_path: Path) -> None:
    tar, _ = build(tmp_path, dict(BASE))
    with tarfile.open(tar) as archive:
        file = archive.extractfile("etc/ssl/certs/ca-certificates.crt")
        assert file is not None
        assert file.read() == b"-A-\n-B-\n"


def test_sources_of_modules_are_kept_aside_for_compiling(tmp_path: Path) -> None:
    _, kept = build(tmp_path, dict(BASE))
    assert kept["usr/lib/python3.13/abc.py"] == b"1\n"


def test_a_file_of_two_packages_names_both(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match=r"/usr/x is in both a and b"):
        build(tmp_path, {"usr/x": b"1"}, {"usr/x": b"2"})


def test_a_file_where_another_package_has_a_link_through_the_old_folder_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match=r"/usr/lib/x is in both a and b"):
        build(tmp_path, {"lib/x": b"1"}, {"usr/lib/x": b"2"})


def test_a_device_node_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "dev.tar"
    with tarfile.open(raw, "w") as tar:
        node = tarfile.TarInfo("./dev/null")
        node.type = tarfile.CHRTYPE
        tar.addfile(node)
    with (
        tarfile.open(raw) as archive,
        RootfsWriter(tmp_path / "r.tar", EPOCH) as root,
        pytest.raises(TandemError, match="/dev/null is a device"),
    ):
        root.add_package("makedev", archive, lambda path, file: None)


def test_the_bytes_do_not_depend_on_when_the_package_was_unpacked(tmp_path: Path) -> None:
    digests = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        digests.append(store.file_digest(build(folder, dict(BASE))[0]))
    assert digests[0] == digests[1]
