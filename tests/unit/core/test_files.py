"""A file is replaced in one step, or stays as it was."""

import errno
from pathlib import Path

import pytest

from pipeline.core.errors import HostError
from pipeline.core.files import as_disk_failure, replace_link, replacing, write_whole


def test_a_file_is_written_with_the_folders_above_it(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b"
    write_whole(file, "one")
    write_whole(file, b"two", mode=0o600, sync=False)
    assert file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(file) as temporary:
        temporary.write_text("new \udc80", encoding="utf-8")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(HostError, match=f"^{tmp_path}/file: cannot be written: ") as caught:
        write_whole(tmp_path / "file", "text")
    assert str(tmp_path) in caught.value.hint


def test_a_link_is_replaced_in_one_step(tmp_path: Path) -> None:
    link = tmp_path / "deep" / "latest"
    for name in ("one", "two", "two"):
        replace_link(link, name)
    assert str(link.readlink()) == "two"
    assert list(link.parent.iterdir()) == [link]


def test_a_full_disk_is_an_expected_failure_and_other_errors_are_not() -> None:
    full, other = OSError(errno.ENOSPC, "No space left on device", "/x"), OSError(errno.EIO, "I/O error")
    assert str(as_disk_failure(full)) == "/x: No space left on device"
    assert as_disk_failure(other) is other
