"""What stages make, kept under the hash of its content: written aside, renamed if absent, never replaced.

Two tasks, or two runs, that come to the same result share its place. Whoever reads it there never finds it gone.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.core.locks import locked

WHOLE_FILE = ""
"""The name of a result that is one file, in place of the names of files in a folder."""
OCCUPIED_ERRORS = {errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR}


def keep(made: Path, place: Path, files: Mapping[str, str]) -> None:
    """Move a finished result, a file or a folder, to the place that is named after its content.

    `files` are its files by their names in the folder (WHOLE for a result that is a file), each with its SHA-256: all
    that may be read of it. If the place holds them, the new result goes. A file that is damaged there is replaced, in
    one step. Raises ValueError (a bug) for a result with other files.
    """
    if unnamed := set(_file_names(made)) ^ files.keys():
        raise ValueError(f"{place}: {', '.join(sorted(unnamed))}: not in the result, or not named by it")
    place.parent.mkdir(parents=True, exist_ok=True)
    # No name here contains a digest: `doit gc` would take what is left of it for a result that a record mentions.
    aside = place.parent / f".{os.urandom(6).hex()}"
    try:
        _move_to_disk(made, aside)
        with locked(place.parent / f".{hashlib.sha256(place.name.encode()).hexdigest()[:16]}.lock", remove=True):
            if not _rename_if_absent(aside, place):
                _repair(aside, place, files)
    finally:
        _remove(aside)


def _file_names(made: Path) -> Iterator[str]:
    if not made.is_dir():
        yield WHOLE_FILE
        return
    yield from (path.relative_to(made).as_posix() for path in made.rglob("*") if not path.is_dir())


def _move_to_disk(made: Path, aside: Path) -> None:
    """Bring a result to the disk on which its place is."""
    try:
        made.rename(aside)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(made, aside)


def _rename_if_absent(aside: Path, place: Path) -> bool:
    """Whether the place was free, and has the new result now."""
    if os.path.lexists(place):
        if place.is_dir() == aside.is_dir():
            return False
        _remove(place)  # not a result: nobody can have read it as one
    try:
        aside.rename(place)
    except OSError as error:
        # By somebody who saw no lock, as on some network file systems.
        if error.errno not in OCCUPIED_ERRORS:
            raise
        return False
    return True


def _repair(aside: Path, place: Path, files: Mapping[str, str]) -> None:
    """Replace what is not what its name says; most often nothing is."""
    from pipeline.core import store

    for name, sha256 in files.items():
        there = place / name
        if there.is_file() and store.file_digest(there) == sha256:
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.is_dir():
            shutil.rmtree(there)
        (aside / name).replace(there)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
