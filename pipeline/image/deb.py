"""Reading a .deb, which is an ar archive of control.tar and data.tar, as streams."""

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
MERGED_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32")


class _Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Returns at most `size` bytes; none at the end of the part."""
        count = self._left if size is None or size < 0 else min(size, self._left)
        chunk = self._file.read(count)
        self._left -= len(chunk)
        return chunk


@contextmanager
def stream(path: Path, member: str) -> Iterator[IO[bytes]]:
    """Opens "data.tar" or "control.tar" of a .deb, decompressed. Raises TandemError if the file is not a .deb."""
    with path.open("rb") as file:
        if file.read(8) != MAGIC:
            raise TandemError(f"{path}: not a .deb")
        while len(head := file.read(60)) == 60:
            name, size = head[:16].decode("ascii").strip().rstrip("/"), int(head[48:58])
            if name.startswith(member):
                with _decompressed(path, cast("IO[bytes]", _Window(file, size)), name.removeprefix(member)) as plain:
                    yield plain
                return
            file.seek(size + size % 2, io.SEEK_CUR)
    raise TandemError(f"{path}: it contains no {member}")


@contextmanager
def data(path: Path) -> Iterator[tarfile.TarFile]:
    """Opens the files of a package, as a tar archive that is read from front to back. Raises TandemError."""
    with stream(path, "data.tar") as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 18) as archive:
        yield archive


def control(path: Path) -> dict[str, bytes]:
    """Returns the control files of a package (control, md5sums, conffiles, scripts …) by name. Raises TandemError."""
    files = {}
    with stream(path, "control.tar") as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
        for member in archive:
            if member.isreg() and (file := archive.extractfile(member)) is not None:
                files[member.name.removeprefix("./")] = file.read()
    return files


def merged(name: str) -> str:
    """Returns a path of a package without its leading "./", and with old top folders (/lib/…) moved below usr/."""
    name = name.removeprefix("./").rstrip("/")
    top, slash, _ = name.partition("/")
    return f"usr/{name}" if slash and top in MERGED_FOLDERS else name


def _decompressed(path: Path, file: IO[bytes], ending: str) -> IO[bytes]:
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
            raise TandemError(f"{path}: unknown compression: {ending}")
