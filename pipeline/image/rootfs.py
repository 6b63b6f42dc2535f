"""A root filesystem as a tar: every path once, with owner and mode of its package, and with the epoch as its mtime."""

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
REPLACED_BY_LINKS = frozenset({*maintainer_files.TOP, *maintainer_files.LINKS})
"""The folders of packages that maintainer_files makes links instead."""


class RootfsWriter:
    """Writes a root filesystem from front to back; it is a context manager."""

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
        """Returns whether something has been added at a path."""
        return path in self._owners or path in self._folders

    def add_package(self, name: str, archive: tarfile.TarFile, keep: Callable[[str, IO[bytes]], None]) -> None:
        """Adds a package's files; calls `keep` with path and content of every Python source and maintainer file.

        Raises TandemError if two packages bring the same path, or one holds a device or a pipe.
        """
        for member in archive:
            path = deb.merged(member.name)
            if path in {"", "."} or path in REPLACED_BY_LINKS or is_left_out(path):
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
            self._tar.addfile(entry, _copied(content, path, keep) if _is_kept(path) else content)
        else:
            raise TandemError(f"{name}: /{path} is a device or a pipe, which no image of ours holds")

    def add_maintainer_files(self, content: dict[str, bytes]) -> None:
        """Adds what the packages' scripts would have made; `content` is what maintainer_files.plan() needs."""
        for item in maintainer_files.plan(self.has, content):
            match item:
                case maintainer_files.File(path, text, mode, gid):
                    self.file(path, text, mode, gid)
                case maintainer_files.Link(path, target):
                    self.link(path, target)
                case maintainer_files.Folder(path, mode):
                    self.folder(path, mode)

    def folder(self, path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        """Adds a folder, unless something is there."""
        if path in self._folders or path in self._owners:
            return
        entry = self._entry(path, "", mode, uid, gid)
        entry.type = tarfile.DIRTYPE
        self._folders.add(path)
        self._tar.addfile(entry)

    def file(self, path: str, content: bytes, mode: int = 0o644, gid: int = 0) -> None:
        """Adds a file that no package brings."""
        entry = self._entry(path, "Tandem", mode, 0, gid)
        entry.size = len(content)
        self._tar.addfile(entry, io.BytesIO(content))

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link that no package brings."""
        entry = self._entry(path, "Tandem", 0o777, 0, 0)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
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


def _copied(content: IO[bytes], path: str, keep: Callable[[str, IO[bytes]], None]) -> IO[bytes]:
    """Show a file's content to `keep`, and return it to be read again."""
    copy = io.BytesIO(content.read())
    keep(path, copy)
    copy.seek(0)
    return copy


def is_python_source(path: str) -> bool:
    """Returns whether a path is a module that the image's interpreter may import."""
    return path.startswith("usr/lib/python3") and path.endswith(".py")


def is_left_out(path: str) -> bool:
    """Returns whether images go without a package's path: manuals, translations, documentation but the copyright."""
    if path.startswith(DOC):
        return path.count("/") > 3 and not path.endswith("/copyright")
    return (path + "/").startswith(DROPPED)


def _is_kept(path: str) -> bool:
    return is_python_source(path) or maintainer_files.is_needed(path)


def copy_below(folder: Path, path: str, content: IO[bytes]) -> None:
    """Writes a file at its path below a folder."""
    copy = folder / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    with copy.open("wb") as file:
        shutil.copyfileobj(content, file)
