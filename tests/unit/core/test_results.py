"""What stages make is kept by content: never replaced, never gone, and set right where it is damaged."""

import hashlib
import os
import tempfile
from pathlib import Path

import pytest

from pipeline.core import results

CONTENT = {"list": b"a\nb\n", "deep/a": b"first", "deep/b": b"second"}
FILES = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


def made(folder: Path) -> Path:
    """A result in a scratch folder."""
    for name, content in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def whole(place: Path) -> bool:
    """Whether a place holds the result and nothing lies beside it."""
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    return found == CONTENT and [path.name for path in place.parent.iterdir()] == [place.name]


def identity(path: Path) -> tuple[int, int, int]:
    """What changes if a file is replaced or written; the time of the last reading changes by itself."""
    status = path.stat()
    return status.st_ino, status.st_mode, status.st_mtime_ns


def test_the_first_result_is_renamed_and_the_second_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "kept" / "place"
    results.keep(made(tmp_path / "first"), place, FILES)
    before = {path: identity(path) for path in (place, *place.rglob("*"))}
    results.keep(made(tmp_path / "second"), place, FILES)
    assert whole(place)
    assert {path: identity(path) for path in (place, *place.rglob("*"))} == before
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("what", ["other bytes", "gone", "a folder", "a link to nothing", "the place is a file"])
def test_a_damaged_result_is_repaired_and_all_else_stays(tmp_path: Path, what: str) -> None:
    place = tmp_path / "kept" / "place"
    results.keep(made(tmp_path / "first"), place, FILES)
    untouched, damaged = identity(place / "list"), place / "deep" / "a"
    damaged.unlink()
    if what == "other bytes":
        damaged.write_bytes(b"f1rst")
    elif what == "a folder":
        (damaged / "x").mkdir(parents=True)
    elif what == "a link to nothing":
        damaged.symlink_to("nothing")
    elif what == "the place is a file":
        place.rename(tmp_path / "away")
        place.write_bytes(b"")
    results.keep(made(tmp_path / "second"), place, FILES)
    assert whole(place)
    assert what == "the place is a file" or identity(place / "list") == untouched


def test_a_damaged_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    place = tmp_path / "kept" / "place"
    results.keep(made(tmp_path / "first"), place, FILES)
    (place / "list").write_bytes(b"damaged")
    with (place / "list").open("rb") as reader:
        results.keep(made(tmp_path / "second"), place, FILES)
        assert reader.read() == b"damaged", "who reads it already reads on"
    assert whole(place)


def test_a_file_is_kept_as_a_folder_is(tmp_path: Path) -> None:
    place, digest = tmp_path / "kept" / "place.tar", hashlib.sha256(b"x").hexdigest()
    for there in (b"x", b"damaged", None):
        (tmp_path / "made").write_bytes(b"x")
        results.keep(tmp_path / "made", place, {results.WHOLE_FILE: digest})
        assert place.read_bytes() == b"x"
        assert [path.name for path in place.parent.iterdir()] == [place.name]
        if there is not None:
            place.write_bytes(there)


def test_a_result_with_an_unnamed_file_is_a_bug(tmp_path: Path) -> None:
    for files in ({"list": FILES["list"]}, {**FILES, "more": "0" * 64}):
        with pytest.raises(ValueError, match="not in the result, or not named by it"):
            results.keep(made(tmp_path / "made"), tmp_path / "kept" / "place", files)
    assert not (tmp_path / "kept").exists()


def test_a_result_that_was_put_there_without_a_lock_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "kept" / "place"
    looks = os.path.lexists

    def late(path: Path) -> bool:
        answer = looks(path)
        if path == place and not answer:
            made(place)
        return answer

    monkeypatch.setattr(os.path, "lexists", late)
    results.keep(made(tmp_path / "made"), place, FILES)
    assert whole(place)


def test_a_result_is_kept_on_another_disk_too(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert Path(other).stat().st_dev != tmp_path.stat().st_dev
        for _ in range(2):
            results.keep(made(Path(other) / "made"), tmp_path / "kept" / "place", FILES)
            assert whole(tmp_path / "kept" / "place")
