"""Keeps the results of stages in places that are named after their content.

A result is written elsewhere and then renamed to its place, unless the place is taken; it is never replaced. Tasks and
runs that come to the same result share its place, and a reader never finds it gone.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.core.locks import locked

WHOLE_FILE = ""
"""Stands for the file itself, where a result is one file and not a folder of named files."""
OCCUPIED_ERRORS = {errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR}


def keep(result: Path, place: Path, files: Mapping[str, str]) -> None:
    """Moves a finished result, a file or a folder, to the place that is named after its content.

    `files` maps the name of each file in the result (WHOLE_FILE if the result is a file) to its SHA-256. If the place
    holds these files already, the new result is removed. A damaged file there is replaced in one step.
    Raises ValueError (a bug) if the result has other files.
    """
    if differing := set(_file_names(result)) ^ files.keys():
        raise ValueError(f"{place}: {', '.join(sorted(differing))}: not in the result, or not named by it")
    place.parent.mkdir(parents=True, exist_ok=True)
    # The name has no digest in it: `./doitw gc` would take a leftover for a result that a record mentions.
    aside = place.parent / f".{os.urandom(6).hex()}"
    try:
        _move_to_disk(result, aside)
        with locked(place.parent / f".{hashlib.sha256(place.name.encode()).hexdigest()[:16]}.lock", remove=True):
            if not _rename_if_absent(aside, place):
                _repair(aside, place, files)
    finally:
        _remove(aside)


def _file_names(result: Path) -> Iterator[str]:
    if not result.is_dir():
        yield WHOLE_FILE
        return
    yield from (path.relative_to(result).as_posix() for path in result.rglob("*") if not path.is_dir())


def _move_to_disk(result: Path, aside: Path) -> None:
    """Moves a result to the disk that its place is on."""
    try:
        result.rename(aside)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(result, aside)


def _rename_if_absent(aside: Path, place: Path) -> bool:
    """Returns whether the place was free and has the new result now."""
    if os.path.lexists(place):
        if place.is_dir() == aside.is_dir():
            return False
        _remove(place)  # a file in place of a folder, or the reverse, is not a result that could be in use
    try:
        aside.rename(place)
    except OSError as error:
        # Another process made it without seeing our lock, as on some network file systems.
        if error.errno not in OCCUPIED_ERRORS:
            raise
        return False
    return True


def _repair(aside: Path, place: Path, files: Mapping[str, str]) -> None:
    """Replaces each file whose content is not that of its SHA-256."""
    from pipeline.core import store

    for name, sha256 in files.items():
        kept = place / name
        if kept.is_file() and store.file_digest(kept) == sha256:
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        if kept.is_dir():
            shutil.rmtree(kept)
        (aside / name).replace(kept)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
