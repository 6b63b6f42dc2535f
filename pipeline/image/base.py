"""The root filesystem of an image made from Debian packages: one tar, the same bytes each time and on any machine.

The locked packages are extracted, and none of their scripts runs; see maintainer_files.
"""

import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from pipeline.core import procs, store
from pipeline.core.errors import Cancelled
from pipeline.core.log import Log, step
from pipeline.image import bytecode, deb, rootfs
from pipeline.image.results import RootFilesystem
from pipeline.image.rootfs import RootfsWriter
from pipeline.lock import debs
from pipeline.lock.contents import DebianLock
from pipeline.lock.debs import Deb

STATUS = "var/lib/dpkg/status.d"
PACKAGES_AHEAD = 2
"""How many packages are decompressed while one is being written."""
COPY_BYTES = 1 << 20


def make_root_filesystem(locked: DebianLock, into: Path, log: Log) -> RootFilesystem:
    """Writes the root filesystem of an image to `into`/rootfs.tar, by one rename.

    Raises TandemError for a package that cannot be fetched, is damaged, or brings a file that another one brings.
    """
    files = debs.fetch_debs(locked.debs, locked.suite, log, image=locked.name, title="Debian packages")
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=into) as folder:
        scratch = Path(folder)
        python = bytecode.extract_python(locked, scratch, log)
        part, sources = scratch / "rootfs.tar", scratch / "sources"
        sources.mkdir()
        with RootfsWriter(part, locked.epoch) as root:
            with step(log, f"{len(locked.debs)} packages into one root"):
                root.add_maintainer_files(_add_packages(locked.debs, files, root, scratch, log))
            with step(log, "bytecode of the base"):
                _add_bytecode(root, sources, python)
        base = RootFilesystem(sha256=store.file_digest(part), size=part.stat().st_size, packages=len(locked.debs))
        part.chmod(0o644)  # whatever the umask: BuildKit takes the mode of what it copies into account
        part.replace(into / "rootfs.tar")
    return base


def _add_packages(
    packages: Sequence[Deb], files: Mapping[str, Path], root: RootfsWriter, scratch: Path, log: Log
) -> dict[str, bytes]:
    """Add every package's files and its entry in status.d; returns the content that maintainer_files needs."""
    content: dict[str, bytes] = {}

    def keep(path: str, file: IO[bytes]) -> None:
        if rootfs.is_python_source(path):
            rootfs.copy_below(scratch / "sources", path, file)
        else:
            content[path] = file.read()

    ordered = sorted(packages)
    tars = _decompressed([files[package.sha256] for package in ordered], scratch)
    for number, (package, tar) in enumerate(zip(ordered, tars, strict=True)):
        if procs.cancelled():
            raise Cancelled("interrupted")
        log.progress("extracting", number, len(ordered), "packages")
        with tarfile.open(tar) as archive:
            root.add_package(package.name, archive, keep)
        tar.unlink()
        fields = deb.control(files[package.sha256])
        root.file(f"{STATUS}/{package.name}", fields["control"])
        if "md5sums" in fields:
            root.file(f"{STATUS}/{package.name}.md5sums", fields["md5sums"])
    return content


def _decompressed(debs: Sequence[Path], scratch: Path) -> Iterator[Path]:
    """Yield the data of each .deb as a plain tar, in order, some ahead: decompressing is most of the work."""

    def decompress(path: Path) -> Path:
        tar = scratch / f"{path.name}.tar"
        with deb.stream(path, "data.tar") as source, tar.open("wb") as file:
            shutil.copyfileobj(source, file, COPY_BYTES)
        return tar

    with ThreadPoolExecutor(PACKAGES_AHEAD) as pool:
        pending = [pool.submit(decompress, path) for path in debs[:PACKAGES_AHEAD]]
        for index in range(len(debs)):
            if index + PACKAGES_AHEAD < len(debs):
                pending.append(pool.submit(decompress, debs[index + PACKAGES_AHEAD]))
            yield pending[index].result()


def _add_bytecode(root: RootfsWriter, sources: Path, python: Sequence[str]) -> None:
    """Add bytecode of every module: without it, importing under emulation takes four times as long."""
    modules = sorted(str(path.relative_to(sources)) for path in sources.rglob("*.py"))
    for compiled in bytecode.compile_tree(python, sources, "/", modules):
        root.file(compiled, (sources / compiled).read_bytes())
