"""What is inside a .deb: the ar archive of control.tar and data.tar, read as streams."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from pipeline.core.errors import TandemError

MAGIC = b"!<arch>\n"
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
def stream(path: Path, wanted: str) -> Iterator[IO[bytes]]:
    """A member of a .deb ("data.tar" or "control.tar"), decompressed. Raises TandemError if it is no .deb."""
    with path.open("rb") as file:
        if file.read(8) != MAGIC:
            raise TandemError(f"{path}: not a .deb")
        while len(head := file.read(60)) == 60:
            name, size = head[:16].decode("ascii").strip().rstrip("/"), int(head[48:58])
            if name.startswith(wanted):
                with _plain(path, cast("IO[bytes]", _Window(file, size)), name.removeprefix(wanted)) as plain:
                    yield plain
                return
            file.seek(size + size % 2, io.SEEK_CUR)
    raise TandemError(f"{path}: no {wanted} in it")


@contextmanager
def data(path: Path) -> Iterator[tarfile.TarFile]:
    """The files of a package, as a tar archive to be read from front to back."""
    with stream(path, "data.tar") as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 18) as archive:
        yield archive


def control(path: Path) -> dict[str, bytes]:
    """The control files of a package (control, md5sums, conffiles, scripts …) by name."""
    found = {}
    with stream(path, "control.tar") as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
        for member in archive:
            if member.isreg() and (file := archive.extractfile(member)) is not None:
                found[member.name.removeprefix("./")] = file.read()
    return found


def merged(name: str) -> str:
    """A path of a package without its leading "./", and what lies in an old top folder (/lib/…) below usr/."""
    name = name.removeprefix("./").rstrip("/")
    top, slash, _ = name.partition("/")
    return f"usr/{name}" if slash and top in MERGED else name


def _plain(path: Path, file: IO[bytes], ending: str) -> IO[bytes]:
    match ending:
        case "":
            return file
        case ".xz":
            return cast("IO[bytes]", lzma.LZMAFile(file))
        case ".gz":
            return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
        case ".bz2":
            return cast("IO[bytes]", bz2.BZ2File(file))
        case _:
            raise TandemError(f"{path}: data compressed in a way that is unknown here: {ending}")
