"""lock → rootfs tar: locked .debs extracted, none of their scripts run, the same bytes each time and everywhere."""

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
from pipeline.image import bytecode, deb, maintainer_files, rootfs
from pipeline.image.results import RootFilesystem
from pipeline.image.rootfs import Rootfs
from pipeline.lock import debs
from pipeline.lock.contents import DebianLock
from pipeline.lock.debs import Deb

STATUS = "var/lib/dpkg/status.d"
AHEAD = 2  # packages that are decompressed while one is being written


def make_root_filesystem(lock: DebianLock, into: Path, log: Log) -> RootFilesystem:
    """Writes the root filesystem of an image to `into`/rootfs.tar, by one rename.

    Raises TandemError for a package that cannot be had, is damaged, or brings a file that another one brings.
    """
    files = debs.fetch(lock.debs, lock.suite, log, image=lock.name, title="Debian packages")
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=into) as folder:
        scratch = Path(folder)
        python = bytecode.extract_python(lock, scratch, log)
        part, sources = scratch / "rootfs.tar", scratch / "sources"
        sources.mkdir()
        with Rootfs(part, lock.epoch) as root:
            with step(log, f"{len(lock.debs)} packages into one root"):
                finish(root, _extract(lock.debs, files, root, scratch, log))
            with step(log, "bytecode of the base"):
                _compile(root, sources, python)
        made = RootFilesystem(sha256=store.digest(part), size=part.stat().st_size, packages=len(lock.debs))
        part.chmod(0o644)  # whatever the umask: BuildKit takes the mode of what it copies into account
        part.replace(into / "rootfs.tar")
    return made


def _extract(
    packages: Sequence[Deb], files: Mapping[str, Path], root: Rootfs, scratch: Path, log: Log
) -> dict[str, bytes]:
    """Every package's files and its entry in status.d; returns the content of what made.make() wants."""
    content: dict[str, bytes] = {}

    def keep(path: str, file: IO[bytes]) -> None:
        if rootfs.python_source(path):
            rootfs.write_aside(scratch / "sources", path, file)
        else:
            content[path] = file.read()

    ordered = sorted(packages)
    plain = _decompressed([files[package.sha256] for package in ordered], scratch)
    for number, (package, file) in enumerate(zip(ordered, plain, strict=True)):
        if procs.cancelled():
            raise Cancelled("interrupted")
        log.progress("extracting", number, len(ordered), "packages")
        with tarfile.open(file) as archive:
            root.add_package(package.name, archive, keep)
        file.unlink()
        fields = deb.control(files[package.sha256])
        root.file(f"{STATUS}/{package.name}", fields["control"])
        if "md5sums" in fields:
            root.file(f"{STATUS}/{package.name}.md5sums", fields["md5sums"])
    return content


def _decompressed(paths: Sequence[Path], scratch: Path) -> Iterator[Path]:
    """The data of each .deb as a plain tar, in order, some ahead: decompressing is most of the work."""

    def one(path: Path) -> Path:
        there = scratch / f"{path.name}.tar"
        with deb.stream(path, "data.tar") as source, there.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        return there

    with ThreadPoolExecutor(AHEAD) as pool:
        pending = [pool.submit(one, path) for path in paths[:AHEAD]]
        for index in range(len(paths)):
            if index + AHEAD < len(paths):
                pending.append(pool.submit(one, paths[index + AHEAD]))
            yield pending[index].result()


def finish(root: Rootfs, content: dict[str, bytes]) -> None:
    """Add what maintainer scripts would have made; `content` is what made.make() wants."""
    for item in maintainer_files.make(root.has, content):
        match item:
            case maintainer_files.File(path, text, mode, gid):
                root.file(path, text, mode, gid)
            case maintainer_files.Link(path, to):
                root.link(path, to)
            case maintainer_files.Folder(path, mode):
                root.folder(path, mode)


def _compile(root: Rootfs, sources: Path, python: Sequence[str]) -> None:
    """Bytecode for every module of the base: without it, importing under emulation takes four times as long."""
    names = sorted(str(path.relative_to(sources)) for path in sources.rglob("*.py"))
    for name in bytecode.compile_tree(python, sources, "/", names):
        root.file(name, (sources / name).read_bytes())
