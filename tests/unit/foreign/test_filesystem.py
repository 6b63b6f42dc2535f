"""A tar stream becomes a view in which links lead where they would lead inside the image, and nowhere else."""

import io
import re
import tarfile
from collections.abc import Iterator

import pytest

from pipeline.core.errors import TandemError
from pipeline.foreign import filesystem
from pipeline.foreign.filesystem import FilesystemView, KeepRule
from tests.tinyroot import Hard, Link, Program, Root, tar

TEXTS: tuple[KeepRule, ...] = ((re.compile(r"\.txt$"), 100),)


def view(root: Root, rules: tuple[KeepRule, ...] = TEXTS, chunk: int = 700) -> FilesystemView:
    raw = tar(root)
    return filesystem.read_tar((raw[at : at + chunk] for at in range(0, len(raw), chunk)), rules)


def test_every_path_is_there_with_kind_mode_size_and_target() -> None:
    seen = view({"a": None, "a/b.txt": b"hello", "./a/run": Program(b"\x7fELFxyz"), "l": Link("a/b.txt")})
    described = {path: (node.kind, node.mode, node.size, node.target) for path, node in seen.nodes.items()}
    assert described == {
        "/a": ("dir", 0o755, 0, ""),
        "/a/b.txt": ("file", 0o644, 5, ""),
        "/a/run": ("file", 0o755, 7, ""),
        "/l": ("link", 0o644, 0, "a/b.txt"),
    }


@pytest.mark.parametrize("target", ["../srv/x.txt", "/srv/x.txt", "../../../../srv/./x.txt", "more", "/opt/more"])
def test_a_link_leads_where_it_would_lead_inside(target: str) -> None:
    seen = view({"srv/x.txt": b"1", "srv": None, "opt/more": Link("/srv/x.txt"), "opt/l": Link(target)})
    assert seen.resolve("/opt/l") == "/srv/x.txt"
    assert seen.text("/opt/l") == "1"


def test_a_folder_behind_a_link_is_a_folder() -> None:
    seen = view({"usr/bin": None, "usr/bin/x.txt": b"1", "bin": Link("usr/bin"), "bin64": Link("bin")})
    assert seen.names("/bin64") == ("x.txt",)
    assert seen.text("/bin64/../bin/x.txt") == "1"
    assert seen.is_dir("/bin64")


def test_resolving_a_loop_of_links_fails_and_finding_it_finds_nothing() -> None:
    seen = view({"a": Link("b"), "b": Link("/a"), "self": Link("self/x")})
    for path in ("/a", "/self"):
        with pytest.raises(TandemError, match=f"^{path}: its links form a loop"):
            seen.resolve(path)
        assert seen.find(path) is None
        assert seen.names(path) == ()


@pytest.mark.parametrize("name", ["../etc/passwd", "a/../../b", "/../x"])
def test_an_entry_that_leads_out_of_the_root_is_refused(name: str) -> None:
    with pytest.raises(TandemError, match="leads out of its root"):
        view({name: b"x"})


def test_a_folder_that_has_no_entry_of_its_own_is_there() -> None:
    seen = view({"a/b/c.txt": b"1"})
    assert (seen.names("/"), seen.names("/a"), seen.is_dir("/a/b")) == (("a",), ("b",), True)


def test_an_absolute_entry_lies_in_the_root() -> None:
    assert view({"/etc/x.txt": b"1"}).text("/etc/x.txt") == "1"


def test_only_files_of_the_rules_are_kept_and_the_beginning_of_programs() -> None:
    root: Root = {
        "big.txt": b"x" * 5000,
        "data": b"secret",
        "tool": Program(b"\x7fELF" + b"z" * 9000),
        "script": Program(b"#!/bin/sh\n" + b"y" * 3000),
    }
    sizes = {path: len(node.content) for path, node in view(root).nodes.items()}
    assert sizes == {"/big.txt": 100, "/data": 0, "/tool": filesystem.ELF_HEADER_BYTES, "/script": 3010}


def test_a_pattern_is_found_where_the_blocks_of_a_file_meet() -> None:
    start = b"." * (filesystem.BLOCK_BYTES - 5)
    seen = view({"lib": start + b"version 2.36" + start}, ((re.compile("/lib$"), re.compile(rb"version \d\.\d+")),))
    assert seen.content("/lib") == b"version 2.36"


def test_a_hard_link_is_the_file_that_it_names() -> None:
    seen = view({"a.txt": b"1", "b.txt": Hard("a.txt"), "c.txt": Hard("nowhere")})
    assert seen.text("/b.txt") == "1"
    assert seen.nodes["/c.txt"].kind == "other"


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_that_is_not_utf8_is_kept_byte_by_byte(form: int) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form) as into:
        for name in ("opt/caf\udce9.txt", f"opt/{'long' * 40}\udce9.txt"):
            into.addfile(tarfile.TarInfo(name))
    assert b"caf\xe9.txt" in raw.getvalue()
    names = [path.encode("utf-8", "surrogateescape") for path in filesystem.read_tar([raw.getvalue()], TEXTS).nodes]
    assert names == [b"/opt/caf\xe9.txt", b"/opt/" + b"long" * 40 + b"\xe9.txt", b"/opt"]


def test_a_stream_that_breaks_off_is_a_plain_error() -> None:
    raw = tar({"a.txt": b"x" * 100_000})
    with pytest.raises(TandemError, match="the export of the image cannot be read"):
        filesystem.read_tar(iter([raw[:5000]]), TEXTS)


def test_a_stream_that_is_not_a_tar_is_a_plain_error() -> None:
    with pytest.raises(TandemError, match="the export of the image cannot be read"):
        filesystem.read_tar(iter([b"no tar at all" * 100]), TEXTS)


def test_other_content_is_counted_and_not_kept() -> None:
    def endless() -> Iterator[bytes]:
        head = tar({"model.bin": b"x" * (64 << 20)})
        yield from (head[at : at + (1 << 20)] for at in range(0, len(head), 1 << 20))

    counts: list[int] = []
    seen = filesystem.read_tar(endless(), TEXTS, counts.append)
    assert counts[-1] > 64 << 20
    assert counts == sorted(counts)
    assert seen.nodes["/model.bin"].content == b""
    assert seen.nodes["/model.bin"].size == 64 << 20
