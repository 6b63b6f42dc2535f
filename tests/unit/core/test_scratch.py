"""Where scratch files go, and that nothing stays."""

from pathlib import Path

import pytest

from pipeline.core import scratch


def test_a_folder_that_fits_easily_is_in_memory_and_is_removed_afterwards(tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    with scratch.scratch_folder(1, disk, memory) as made:
        (made / "file").touch()
        assert made.parent == memory
    assert not list(memory.iterdir())


def test_a_folder_that_does_not_fit_is_on_disk(tmp_path: Path) -> None:
    with scratch.scratch_folder(1 << 60, tmp_path, tmp_path / "none") as made:
        assert made.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_memory_is_never_filled(tmp_path: Path) -> None:
    assert scratch.fits_in_memory(999, tmp_path, 3000)
    assert not scratch.fits_in_memory(1001, tmp_path, 3000)
    assert not scratch.fits_in_memory(1, tmp_path / "none", 3000)


@pytest.mark.parametrize(
    ("namespace", "pid", "start", "goes"),
    [
        ("", "99999999", "", True),
        ("", "", "1", True),  # its number is another's by now
        ("", "", "", False),
        ("1", "99999999", "", False),  # in a container that has the same /dev/shm: it cannot be seen from here
    ],
)
def test_only_folders_of_ended_processes_are_removed(
    tmp_path: Path, namespace: str, pid: str, start: str, goes: bool
) -> None:
    with scratch.scratch_folder(1, tmp_path, tmp_path) as mine:
        prefix, *ours, end = mine.name.split("-")
        changed = (given or own for given, own in zip((namespace, pid, start), ours, strict=True))
        other = tmp_path / "-".join((prefix, *changed, f"{end}x"))
        other.mkdir()
        with scratch.scratch_folder(1, tmp_path, tmp_path):
            assert other.exists() is not goes
        assert mine.exists()
