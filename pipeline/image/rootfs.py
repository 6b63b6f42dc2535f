"""The root as a tar archive: every entry once, its owner and mode as the package says, its mtime the epoch."""

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from pipeline.core.errors import TandemError
from pipeline.image import deb, maintainer_files

DROPPED = ("usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/", "var/log/")
DOC = "usr/share/doc/"
RECLAIMED = frozenset({*maintainer_files.TOP, *maintainer_files.LINKS})  # folders of packages where a link belongs


class Rootfs:
    """A rootfs being written, front to back; use it as a context manager."""

    def __init__(self, path: Path, epoch: int) -> None:
        self._file = path.open("wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115  closed by __exit__
        self._epoch = epoch
        self._owners: dict[str, str] = {}
        self._folders: set[str] = {""}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self._file.close()

    def has(self, path: str) -> bool:
        """Whether something lies at a path."""
        return path in self._owners or path in self._folders

    def add_package(self, name: str, archive: tarfile.TarFile, keep: Callable[[str, IO[bytes]], None]) -> None:
        """Add a package's files; `keep` is shown the content of each regular file that wanted() or Python asks for.

        Raises TandemError if two packages bring the same path, or one holds what a rootfs must not.
        """
        for member in archive:
            path = deb.merged(member.name)
            if path in {"", "."} or path in RECLAIMED or dropped(path):
                continue
            if member.isdir():
                self.folder(path, member.mode, member.uid, member.gid)
            else:
                self._add_member(name, path, member, archive, keep)

    def _add_member(
        self,
        name: str,
        path: str,
        member: tarfile.TarInfo,
        archive: tarfile.TarFile,
        keep: Callable[[str, IO[bytes]], None],
    ) -> None:
        if path in self._owners or path in self._folders:
            raise TandemError(f"/{path} is in both {self._owners.get(path, 'another package')} and {name}")
        entry = self._entry(path, name, member.mode, member.uid, member.gid)
        if member.issym():
            entry.type, entry.linkname = tarfile.SYMTYPE, member.linkname
            self._tar.addfile(entry)
        elif member.islnk():
            entry.type, entry.linkname = tarfile.LNKTYPE, deb.merged(member.linkname)
            self._tar.addfile(entry)
        elif member.isreg() and (content := archive.extractfile(member)) is not None:
            entry.size = member.size
            self._tar.addfile(entry, _Shown(content, path, keep) if _of_interest(path) else content)
        else:
            raise TandemError(f"{name}: /{path} is a device or a pipe, which no image of ours holds")

    def folder(self, path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        """Add a folder, if it is not there yet."""
        if path in self._folders or path in self._owners:
            return
        entry = self._entry(path, "", mode, uid, gid)
        entry.type = tarfile.DIRTYPE
        self._folders.add(path)
        self._tar.addfile(entry)

    def file(self, path: str, content: bytes, mode: int = 0o644, gid: int = 0) -> None:
        """Add a file of our own."""
        entry = self._entry(path, "Tandem", mode, 0, gid)
        entry.size = len(content)
        self._tar.addfile(entry, io.BytesIO(content))

    def link(self, path: str, to: str) -> None:
        """Add a symbolic link of our own."""
        entry = self._entry(path, "Tandem", 0o777, 0, 0)
        entry.type, entry.linkname = tarfile.SYMTYPE, to
        self._tar.addfile(entry)

    def _entry(self, path: str, owner: str, mode: int, uid: int, gid: int) -> tarfile.TarInfo:
        parent = path.rpartition("/")[0]
        if parent not in self._folders:
            self.folder(parent)
        entry = tarfile.TarInfo(path)
        entry.mtime, entry.mode, entry.uid, entry.gid = self._epoch, mode & 0o7777, uid, gid
        entry.uname = entry.gname = ""
        if owner:
            self._owners[path] = owner
        return entry


class _Shown(io.RawIOBase):
    """A file that is kept aside while it is copied."""

    def __init__(self, content: IO[bytes], path: str, keep: Callable[[str, IO[bytes]], None]) -> None:
        self._copy = io.BytesIO(content.read())
        keep(path, self._copy)
        self._copy.seek(0)

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """From the copy."""
        return self._copy.read(size)


def python_source(path: str) -> bool:
    """Whether a path is a module that the image's interpreter may import."""
    return path.startswith("usr/lib/python3") and path.endswith(".py")


def dropped(path: str) -> bool:
    """Whether a package's path is left out: manuals, translations, documentation but for the copyright."""
    if path.startswith(DOC):
        return path.count("/") > 3 and not path.endswith("/copyright")
    return (path + "/").startswith(DROPPED)


def _of_interest(path: str) -> bool:
    return python_source(path) or maintainer_files.wanted(path)


def write_aside(folder: Path, path: str, content: IO[bytes]) -> None:
    """Keep a source file below a folder."""
    there = folder / path
    there.parent.mkdir(parents=True, exist_ok=True)
    with there.open("wb") as file:
        shutil.copyfileobj(content, file)
