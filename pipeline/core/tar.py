"""Writes tar files that depend only on names, contents and one epoch. The steps of a build pass them on.

Owner, mode and time are written as they will be in the image, so the umask and the clock of the build machine cannot
change it. BuildKit also takes over one file faster than thousands.
"""

import hashlib
import io
import tarfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

CHUNK_BYTES = 1 << 20
FOLDER_MODES = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
"""Folders whose mode in a base is not 0755. Our layers must not change it."""


NO_PATHS: Mapping[str, str] = MappingProxyType({})
"""The paths that are present in an image that begins empty."""


class _HashingFile:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._size += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._size

    def close(self) -> str:
        self._file.close()
        return self._hash.hexdigest()


def write_archive(
    into: Path,
    members: Mapping[str, Path | bytes],
    epoch: int,
    folders: Iterable[str] = (),
    present: Collection[str] = (),
) -> str:
    """Writes a tar of `members` (path in the image → file, link or content) and of every folder above them.

    Folders that are `present` already are left out, so their owner, mode and time do not change. All else belongs to
    root and has the mtime `epoch`. Folders and files that their owner may execute get the mode 0755, other files 0644.
    The same members give the same bytes. Returns the archive's SHA-256.
    """
    sink = _HashingFile(into)
    try:
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT, copybufsize=CHUNK_BYTES) as tar:  # type: ignore[call-overload]  # writing needs write() and tell() only
            above = {*_parent_folders(members), *folders, *_parent_folders(folders)}.difference(present)
            for name in sorted({*members, *above}):
                _add(tar, name, members.get(name), epoch)
    finally:
        digest = sink.close()
    into.chmod(0o644)
    return digest


def entry_kinds(file: Path) -> dict[str, str]:
    """Returns the paths of an archive that write_archive() made: "d" for a folder, "l" for a link, "f" for the rest."""
    with tarfile.open(file) as tar:
        return {entry.name: "d" if entry.isdir() else "l" if entry.issym() else "f" for entry in tar}


def conflicting_members(members: Iterable[str], present: Mapping[str, str]) -> list[str]:
    """Returns the members, sorted, that would replace something `present` (path → "d", "l" or "f")."""
    clashing = {name for name in members if name in present}
    clashing |= {name for name in members if any(present.get(folder) == "f" for folder in _parent_folders([name]))}
    return sorted(clashing)


def archive_bytes(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Returns a tar in the form that engines take; `files` maps a path to content and mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, (content, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _parent_folders(names: Iterable[str]) -> set[str]:
    return {str(folder) for name in names for folder in PurePosixPath(name).parents if str(folder) != "."}


def _add(tar: tarfile.TarFile, name: str, content: Path | bytes | None, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = epoch
    entry.mode = 0o644
    if content is None:
        entry.type, entry.mode = tarfile.DIRTYPE, FOLDER_MODES.get(name, 0o755)
        tar.addfile(entry)
    elif isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    elif content.is_symlink():
        entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, str(content.readlink())
        tar.addfile(entry)
    else:
        with content.open("rb") as file:
            status: Any = content.stat()
            entry.size = status.st_size
            entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
            tar.addfile(entry, file)
