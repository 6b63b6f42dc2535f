"""What uv leaves behind, made fit for the image; archives that depend on contents only."""

import base64
import csv
import hashlib
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from pipeline.core import tar
from pipeline.core.errors import TandemError
from pipeline.image import installed_tree
from pipeline.lock import place

SITE = "usr/local/lib/python3.13/dist-packages"
MAIN = b"from demo import main\nmain()\n"


def vouch(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def installed(root: Path, name: str, files: dict[str, bytes], *, record: bool = True) -> None:
    info = f"{name}-1.0.dist-info"
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    (root / info).mkdir(parents=True, exist_ok=True)
    if record:
        rows = [f"{path},{vouch(content)},{len(content)}" for path, content in files.items()]
        (root / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,"]) + "\n")


def rows(root: Path, name: str) -> dict[str, tuple[str, str]]:
    with (root / f"{name}-1.0.dist-info" / "RECORD").open(newline="") as file:
        return {row[0]: (row[1], row[2]) for row in csv.reader(file)}


@pytest.mark.parametrize(
    "head",
    [
        b"#!/home/me/.venv/bin/python\n",
        b"#!/home/me/.venv/bin/python3.11 -E\n",
        b"#!/bin/sh\n'''exec' \"$(printf %b '\\0057\\0303\\0274')\" \"$0\" \"$@\"\n' '''\n",
        b"#!/bin/sh\n'''exec' '/a folder/with spaces/bin/python3' \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_a_script_names_the_images_interpreter_and_record_vouches_for_it(tmp_path: Path, head: bytes) -> None:
    installed(tmp_path, "demo", {"demo.py": b"", "bin/demo": head + MAIN})
    (found,) = installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {})
    fixed = b"#!/usr/bin/python3\n" + MAIN
    assert (tmp_path / "bin/demo").read_bytes() == fixed
    assert rows(tmp_path, "demo")["../../../bin/demo"] == (vouch(fixed), str(len(fixed)))
    assert found.files["bin/demo"] == "usr/local/bin/demo"
    assert found.files["demo.py"] == f"{SITE}/demo.py"


def test_a_script_of_the_shell_and_a_program_stay_as_they_are(tmp_path: Path) -> None:
    files = {"bin/tool": b"\x7fELF\x02\x01 python\n", "bin/run": b"#!/bin/bash\npython3 x\n"}
    installed(tmp_path, "demo", files)
    installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {})
    assert {path: (tmp_path / path).read_bytes() for path in files} == files
    assert rows(tmp_path, "demo")["../../../bin/run"] == (vouch(files["bin/run"]), "22")


def test_every_record_names_its_files_from_where_it_lies_in_the_image(tmp_path: Path) -> None:
    installed(tmp_path, "demo", {"demo/a.py": b"a", "share/man/man1/demo.1": b"m", "bin/demo": b"#!/x/python\n"})
    (found,) = installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {})
    there = {os.path.normpath(f"{SITE}/{path}") for path in rows(tmp_path, "demo")}
    assert there == set(found.files.values())


def test_files_of_the_installer_are_removed(tmp_path: Path) -> None:
    info = "demo-1.0.dist-info"
    installed(
        tmp_path, "demo", {"demo.py": b"", **{f"{info}/{name}": b"here" for name in installed_tree.INSTALLER_FILES}}
    )
    (tmp_path / ".lock").touch()
    (found,) = installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {})
    assert set(found.files) == {"demo.py", f"{info}/RECORD"}
    assert not any((tmp_path / info / name).exists() for name in installed_tree.INSTALLER_FILES)


def test_installer_files_of_a_vendored_distribution_stay(tmp_path: Path) -> None:
    inside = "demo/vendored/x-1.dist-info/INSTALLER"
    installed(tmp_path, "demo", {inside: b"pip\n"})
    (found,) = installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {})
    assert inside in found.files
    assert inside in rows(tmp_path, "demo")


def test_a_file_of_a_record_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    installed(tmp_path, "demo", {"demo/a.py": b"", "demo/\u00e9.py": b""})
    (tmp_path / "demo/\u00e9.py").unlink()
    with pytest.raises(TandemError, match=r"demo: 'demo/\u00e9\.py' is in its RECORD and was not installed"):
        installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {})


@pytest.mark.parametrize("member", ["demo-1.0.data/scripts/run", "demo-1.0.data/purelib/other"])
def test_a_script_that_uv_wrote_in_an_unknown_form_is_refused(tmp_path: Path, member: str) -> None:
    installed(tmp_path, "demo", {"bin/run": b"#!/home/me/interpreter\nprint(1)\n"})
    with zipfile.ZipFile(tmp_path / "demo.whl", "w") as wheel:
        wheel.writestr(member, "#!python\nprint(1)\n")
    with pytest.raises(
        TandemError, match=r"demo\.whl: uv wrote the script bin/run .* begins with #!/home/me/interpreter"
    ):
        installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {"demo": tmp_path / "demo.whl"})


def test_record_does_not_depend_on_the_order_in_which_it_was_written(tmp_path: Path) -> None:
    files = {"demo/b.py": b"b", "demo/a.py": b"a", "bin/demo": b"#!/x/python\n"}
    for folder, order in ((tmp_path / "1", files), (tmp_path / "2", dict(reversed(files.items())))):
        installed(folder, "demo", order)
        installed_tree.normalise_tree(folder, place.debian_place("3.13"), {})
    one, two = (tmp_path / n / "demo-1.0.dist-info" / "RECORD" for n in "12")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("last", [b"of a", b"of b"])
def test_of_two_distributions_with_one_file_the_first_by_name_wins(tmp_path: Path, last: bytes) -> None:
    for name in "ab":
        installed(tmp_path, name, {"shared/x.py": f"of {name}".encode()})
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as wheel:
            wheel.writestr(f"{name}-1.0.data/purelib/shared/x.py", f"of {name}")
    (tmp_path / "shared/x.py").write_bytes(last)
    first, second = installed_tree.normalise_tree(
        tmp_path, place.debian_place("3.13"), {name: tmp_path / f"{name}.whl" for name in "ab"}
    )
    assert (tmp_path / "shared/x.py").read_bytes() == b"of a"
    assert "shared/x.py" in first.files
    assert "shared/x.py" not in second.files
    assert rows(tmp_path, "b")["shared/x.py"] == (vouch(b"of a"), "4")


def test_a_distribution_that_was_not_installed_completely_is_named(tmp_path: Path) -> None:
    installed(tmp_path, "demo", {"demo.py": b""}, record=False)
    with pytest.raises(TandemError, match="not installed as it should be: lost, demo"):
        installed_tree.normalise_tree(tmp_path, place.debian_place("3.13"), {"lost": tmp_path / "lost.whl"})


def elf(machine: int, order: str = "little") -> bytes:
    return b"\x7fELF\x02" + (b"\x01" if order == "little" else b"\x02") + bytes(12) + machine.to_bytes(2, order)  # type: ignore[arg-type]


def test_machine_code_of_another_architecture_is_found(tmp_path: Path) -> None:
    files = {"ours.so": elf(183), "theirs.so": elf(62), "old.so": elf(21, "big"), "gpu.cubin": elf(190), "text": b"x"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    paths = {name: tmp_path / name for name in files}
    assert installed_tree.wrong_architecture(paths, "arm64") == ["old.so (ppc64)", "theirs.so (x86-64)"]
    assert installed_tree.wrong_architecture(paths, "amd64") == ["old.so (ppc64)", "ours.so (aarch64)"]


def members(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return {member.name: member for member in tar}


def test_an_archive_has_every_folder_above_its_files_all_of_root_all_of_one_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "run").write_bytes(b"x")
    (tmp_path / "run").chmod(0o700)
    (tmp_path / "link").symlink_to("python3.13")
    tar.write_archive(
        tmp_path / "a.tar",
        {"usr/lib/file": tmp_path / "file", "usr/bin/run": tmp_path / "run", "usr/lib/link": tmp_path / "link"},
        1_700_000_000,
        folders=["work/here"],
    )
    found = members(tmp_path / "a.tar")
    assert list(found) == [
        "usr",
        "usr/bin",
        "usr/bin/run",
        "usr/lib",
        "usr/lib/file",
        "usr/lib/link",
        "work",
        "work/here",
    ]
    assert {(m.uid, m.gid, m.uname, m.mtime) for m in found.values()} == {(0, 0, "", 1_700_000_000)}
    assert {name: oct(m.mode) for name, m in found.items() if not m.issym()} == {
        "usr": "0o755", "usr/bin": "0o755", "usr/bin/run": "0o755", "usr/lib": "0o755", "usr/lib/file": "0o644",
        "work": "0o755", "work/here": "0o755",
    }  # fmt: skip
    assert found["usr/lib/link"].linkname == "python3.13"


def test_an_archive_leaves_tmp_and_roots_home_their_modes(tmp_path: Path) -> None:
    tar.write_archive(tmp_path / "a.tar", {"tmp/x": b"", "var/tmp/x": b"", "root/x": b""}, 1)
    found = members(tmp_path / "a.tar")
    assert [oct(found[name].mode) for name in ("tmp", "var/tmp", "root", "var")] == [
        "0o1777",
        "0o1777",
        "0o700",
        "0o755",
    ]


def test_an_archive_depends_neither_on_the_umask_nor_on_the_clock(tmp_path: Path) -> None:
    digests = []
    for name, mask, when in (("a", 0o002, 0), ("b", 0o077, 1_600_000_000)):
        before = os.umask(mask)
        try:
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_bytes(b"content")
        finally:
            os.umask(before)
        os.utime(tmp_path / name / "file", (when, when))
        files: dict[str, Path | bytes] = {"d/file": tmp_path / name / "file", "c": b"text"}
        digests.append(tar.write_archive(tmp_path / f"{name}.tar", dict(sorted(files.items(), reverse=name == "a")), 5))
    assert digests[0] == digests[1]
    assert digests[0] == hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest()


def test_another_content_and_another_mode_are_another_archive(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1")
    digests = {tar.write_archive(tmp_path / "a.tar", {"f": file}, 1)}
    file.chmod(0o755)
    digests.add(tar.write_archive(tmp_path / "a.tar", {"f": file}, 1))
    file.write_bytes(b"2")
    digests.add(tar.write_archive(tmp_path / "a.tar", {"f": file}, 1))
    digests.add(tar.write_archive(tmp_path / "a.tar", {"f": file}, 2))
    assert len(digests) == 4
