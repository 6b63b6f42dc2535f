"""Where scratch files go, and that nothing stays."""

import os
from pathlib import Path

from pipeline.core import scratch


def test_what_fits_easily_goes_to_memory_and_is_gone_afterwards(tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    with scratch.scratch_folder(1, disk, memory) as made:
        (made / "file").touch()
        assert made.parent == memory
    assert not list(memory.iterdir())


def test_what_does_not_fit_goes_to_disk(tmp_path: Path) -> None:
    with scratch.scratch_folder(1 << 60, tmp_path, tmp_path / "none") as made:
        assert made.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_memory_is_never_filled(tmp_path: Path) -> None:
    assert scratch.fits(999, tmp_path, 3000)
    assert not scratch.fits(1001, tmp_path, 3000)
    assert not scratch.fits(1, tmp_path / "none", 3000)


def test_what_a_killed_process_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead, alive = tmp_path / "tandem-99999999-x", tmp_path / f"tandem-{os.getppid()}-x"
    dead.mkdir()
    alive.mkdir()
    with scratch.scratch_folder(1, tmp_path, tmp_path):
        assert not dead.exists()
        assert alive.exists()
