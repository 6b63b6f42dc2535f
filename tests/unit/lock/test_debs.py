"""Debian packages: where they come from, how apt's words are read, what is inside them."""

from pathlib import Path

import pytest

from pipeline.core import store
from pipeline.core.errors import TandemError
from pipeline.image import deb
from pipeline.lock import apt, debs
from pipeline.lock.debs import PackageSource
from tests import tinydeb

TARGETS = """http://m.invalid/debian/|bookworm|main|Debian
http://m.invalid/debian/|bookworm|contrib|Debian
http://m.invalid/debian/|bookworm-updates|main|Debian
http://s.invalid/debian-security/|bookworm-security|main|Debian
http://m.invalid/debian/|bookworm-backports|main|Debian
https://node.invalid/node_20.x/|nodistro|main|. nodistro
https://docker.invalid/linux/debian/|bookworm|stable|Docker
https://other.invalid/debian/|bookworm|main|Other
"""
STANZA = """Package: libzstd1
Source: libzstd
Version: 1.5.7+dfsg-1
Architecture: arm64
Depends: libc6 (>= 2.34)
Filename: pool/main/libz/libzstd/libzstd1_1.5.7+dfsg-1_arm64.deb
Size: 278000
SHA256: 0123456789abcdef
Description: fast
 Package: not a field
"""


def test_the_hosts_debian_sources_are_taken_with_another_suite() -> None:
    assert debs.derive_sources(TARGETS, "trixie", "bookworm") == (
        PackageSource("http://m.invalid/debian/", "trixie"),
        PackageSource("http://m.invalid/debian/", "trixie-updates"),
        PackageSource("http://s.invalid/debian-security/", "trixie-security"),
    )


def test_sources_are_found_before_apt_has_read_any_list() -> None:
    text = "https://third.invalid/x|bookworm|main|\nhttp://m.invalid/debian|bookworm|main|\n"
    assert debs.derive_sources(text, "trixie", "bookworm") == (PackageSource("http://m.invalid/debian/", "trixie"),)


def test_a_machine_without_debian_sources_has_none() -> None:
    assert debs.derive_sources("https://node.invalid/|nodistro|main|\n", "trixie", "bookworm") == ()


def test_a_source_may_name_its_suite_by_rank() -> None:
    assert debs.derive_sources("http://m.invalid/debian/|stable|main|Debian", "trixie", "trixie") != ()


def test_a_stanza_becomes_a_package() -> None:
    found = apt.stanzas(STANZA + "\n" + STANZA.replace("libzstd1", "zstd"))
    assert sorted(found) == ["libzstd1", "zstd"]
    package = apt.parse_stanza(found["libzstd1"][0])
    assert package is not None
    assert (package.version, package.size, package.sha256) == ("1.5.7+dfsg-1", 278000, "0123456789abcdef")


def test_a_stanza_without_a_hash_is_ignored() -> None:
    assert apt.parse_stanza(STANZA.replace("SHA256", "MD5sum")) is None


def test_a_security_update_is_looked_for_on_the_security_mirror_first(tmp_path: Path) -> None:
    sources = debs.derive_sources(TARGETS, "trixie", "bookworm")
    package = tinydeb.make(tmp_path / "a.deb", "a", {})
    update = debs.Deb("a", "1", "arm64", "0" * 64, 1, "pool/updates/main/a/a.deb")
    plain, urgent = debs.store_items([package, update], sources)
    assert plain.urls[0].startswith("http://m.invalid/")
    assert urgent.urls == (
        "http://s.invalid/debian-security/pool/updates/main/a/a.deb",
        "http://m.invalid/debian/pool/updates/main/a/a.deb",
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("E: Unable to locate package nosuch\n", "trixie has no package nosuch for arm64"),
        ("E: Package 'python2' has no installation candidate\n", "trixie has no package python2 for arm64"),
        (
            "The following packages have unmet dependencies:\n a : Depends: b (= 2) but 1 is to be installed\n",
            "a : Depends: b (= 2) but 1 is to be installed",
        ),
    ],
)
def test_apts_refusal_is_one_message(said: str, expected: str) -> None:
    assert expected in apt.refusal_message(said, "trixie", "arm64")


def test_packages_that_exclude_each_other_are_read_from_apts_output() -> None:
    said = (
        "The following packages have unmet dependencies:\n"
        " a : Depends: b (= 2) but 1 is to be installed\n"
        "     PreDepends: c:arm64 (>= 3) but it is not going to be installed\n"
        "E: Unable to correct problems, you have held broken packages.\n"
    )
    assert apt.clashing_packages(said) == {"a", "b", "c"}


def test_a_package_is_read_without_dpkg(tmp_path: Path) -> None:
    path = tmp_path / "a.deb"
    tinydeb.make(path, "a", {"usr": None, "usr/hello": b"hello", "usr/link": "hello"})
    assert b"Package: a\n" in deb.control(path)["control"]
    with deb.data(path) as archive:
        assert [member.name for member in archive] == ["./usr", "./usr/hello", "./usr/link"]


@pytest.mark.parametrize("content", [b"", b"!<arch>\n", b"<html>not found</html>"])
def test_a_file_that_is_not_a_package_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(content)
    with pytest.raises(TandemError, match=r"a\.deb"), deb.data(path):
        pass


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("./lib/ld-linux.so.2", "usr/lib/ld-linux.so.2"),
        ("./sbin/ip", "usr/sbin/ip"),
        ("./bin", "bin"),
        ("./libexec/x", "libexec/x"),
        ("./etc/lib/x", "etc/lib/x"),
        (".", "."),
    ],
)
def test_old_top_folders_lie_below_usr(name: str, there: str) -> None:
    assert deb.merged(name) == there


def test_a_missing_package_is_named_with_version_and_architecture(tmp_path: Path) -> None:
    package = tinydeb.make(tmp_path / "a.deb", "a", {})
    (item,) = debs.store_items([package], [])
    error = store.MissingFileError(item, "404")
    assert "a 1.0 (arm64)" in str(error)
