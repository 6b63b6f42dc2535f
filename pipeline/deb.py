"""What is inside a .deb: the ar archive of control.tar and data.tar, read as streams."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from pipeline.errors import TandemError

MAGIC = b"!<arch>\n"
COMPRESSIONS: dict[str, Literal["r|", "r|gz", "r|xz", "r|bz2"]] = {"": "r|", "gz": "r|gz", "xz": "r|xz", "bz2": "r|bz2"}
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32")


class _Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """At most `size` bytes; none at the end of the part."""
        count = self._left if size is None or size < 0 else min(size, self._left)
        chunk = self._file.read(count)
        self._left -= len(chunk)
        return chunk


@contextmanager
def data(path: Path) -> Iterator[tarfile.TarFile]:
    """The files of a package, as a tar archive to be read from front to back. Raises TandemError if it is no .deb."""
    with _member(path, "data.tar") as archive:
        yield archive


def control(path: Path) -> dict[str, bytes]:
    """The control files of a package (control, md5sums, conffiles, scripts …) by name."""
    found = {}
    with _member(path, "control.tar") as archive:
        for member in archive:
            if member.isreg() and (file := archive.extractfile(member)) is not None:
                found[member.name.removeprefix("./")] = file.read()
    return found


def merged(name: str) -> str:
    """A path of a package without its leading "./", and with the old top folders below usr/."""
    name = name.removeprefix("./").rstrip("/")
    top, slash, rest = name.partition("/")
    return f"usr/{top}{slash}{rest}" if top in MERGED else name


@contextmanager
def _member(path: Path, wanted: str) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as file:
        if file.read(8) != MAGIC:
            raise TandemError(f"{path}: not a .deb")
        while len(head := file.read(60)) == 60:
            name, size = head[:16].decode("ascii").strip().rstrip("/"), int(head[48:58])
            if name.startswith(wanted):
                kind = name.removeprefix(wanted).removeprefix(".")
                yield from _opened(path, _Window(file, size), kind)
                return
            file.seek(size + size % 2, io.SEEK_CUR)
    raise TandemError(f"{path}: no {wanted} in it")


def _opened(path: Path, window: _Window, kind: str) -> Iterator[tarfile.TarFile]:
    if kind not in COMPRESSIONS:
        raise TandemError(f"{path}: compressed in a way that is unknown here: {kind}")
    with tarfile.open(fileobj=window, mode=COMPRESSIONS[kind], bufsize=1 << 18) as archive:
        yield archive
