"""A Python of the image's version that runs on the build machine: to compile bytecode, and nothing else.

Its .debs are extracted only, and it is started through its own dynamic linker, so that the build machine may run any
distribution and any libc.
"""

import os
import shutil
import tarfile
from pathlib import Path

from pipeline.core import platforms, procs
from pipeline.core.errors import HostError
from pipeline.core.log import Log
from pipeline.image import deb
from pipeline.lock import debs
from pipeline.lock.contents import Lock

LINKERS = {
    "amd64": ("ld-linux-x86-64.so.2", "x86_64-linux-gnu"),
    "arm64": ("ld-linux-aarch64.so.1", "aarch64-linux-gnu"),
}


def interpreter(lock: Lock, into: Path, log: Log) -> list[str]:
    """Extract the lock's interpreter for this machine below `into` (done once), and return how to start it.

    The result is an argv prefix: a script and its arguments follow. It forks, but cannot start itself anew
    (multiprocessing's spawn), for sys.executable is the dynamic linker. Raises HostError on an unknown machine.
    """
    arch = platforms.this_architecture()
    if arch not in LINKERS:
        raise HostError(f"no interpreter is locked for {arch}, only for {', '.join(LINKERS)}")
    root = into / f"python{lock.python}-{arch}"
    linker, triplet = LINKERS[arch]
    if not root.is_dir():
        _extract(lock, arch, root, log)
    found = [root / folder / linker for folder in ("usr/lib64", "usr/lib", f"usr/lib/{triplet}")]
    start = next((path for path in found if path.exists()), None)
    if start is None:
        raise HostError(f"{root} has no {linker}")
    libraries = f"{root}/usr/lib/{triplet}:{root}/usr/lib"
    # Not -I: Python finds its library by PYTHONHOME, since the kernel was told to run the linker.
    # A fixed seed, for sets of constants are written in the order of their hashes.
    return [
        "env", "-i", *(f"{name}={value}" for name, value in procs.FIXED.items()),
        f"PYTHONHOME={root}/usr", "PYTHONNOUSERSITE=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0", "PYTHONUTF8=1",
        str(start), "--inhibit-cache", "--library-path", libraries, f"{root}/usr/bin/python{lock.python}", "-s",
    ]  # fmt: skip


def _extract(lock: Lock, arch: str, root: Path, log: Log) -> None:
    wanted = [package for package in lock.interpreter if package.arch in {arch, "all"}]
    files = debs.fetch(wanted, lock.suite, log, image=lock.name, title=f"Python {lock.python} for this machine")
    part = root.with_name(root.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    for package in wanted:
        with deb.data(files[package.sha256]) as archive:
            for member in archive:
                # What lies beside programs, libraries and their settings (sitecustomize) is of no use here.
                if deb.merged(member.name).startswith(("usr/bin/", "usr/lib/", "usr/lib64/", "etc/python")):
                    _place(archive, member, part)
    part.replace(root)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Extract one member by hand: Python before 3.11.4 has no extraction filters, and 3.14 refuses absolute links."""
    there = root / deb.merged(member.name)
    there.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        to = member.linkname  # an absolute one leads to the package's own file, never to this machine's
        there.symlink_to(os.path.relpath(root / deb.merged(to.lstrip("/")), there.parent) if to.startswith("/") else to)
    elif member.islnk():
        there.hardlink_to(root / deb.merged(member.linkname))
    elif (content := archive.extractfile(member)) is not None:
        with there.open("wb") as file:
            shutil.copyfileobj(content, file)
        there.chmod(member.mode & 0o755)
