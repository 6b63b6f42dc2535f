"""A Python of the image's version that runs on the build machine: to compile bytecode, and nothing else.

Its Debian packages are extracted but not installed, and it is started through its own dynamic linker: the build machine
may run any distribution and any libc.
"""

import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.core import platforms, procs
from pipeline.core.errors import HostError
from pipeline.core.log import Log
from pipeline.image import deb
from pipeline.lock import debs
from pipeline.lock.contents import Lock

SCRIPT = Path(__file__).parents[1] / "probes" / "bytecode.py"
"""The program that the extracted Python runs."""
COMPILE_TIMEOUT_S = 1800
LINKERS = {
    "amd64": ("ld-linux-x86-64.so.2", "x86_64-linux-gnu"),
    "arm64": ("ld-linux-aarch64.so.1", "aarch64-linux-gnu"),
}
"""The dynamic linker of each architecture, and the folder of its libraries."""
USED = ("usr/bin/", "usr/lib/", "usr/lib64/", "etc/python")
"""The paths that are extracted: programs, libraries, and settings (sitecustomize)."""


def extract_python(locked: Lock, into: Path, log: Log) -> list[str]:
    """Extracts the lock's Python for this machine below `into`, unless it is there, and returns how to start it.

    The result is the beginning of an argv: a script and its arguments follow. This Python forks, but cannot start
    itself (multiprocessing's spawn), since sys.executable is the dynamic linker. Raises HostError on a machine of an
    unknown architecture, TandemError if a package cannot be fetched.
    """
    arch = platforms.this_architecture()
    if arch not in LINKERS:
        raise HostError(f"no interpreter is locked for {arch}, only for {', '.join(LINKERS)}")
    root = into / f"python{locked.python}-{arch}"
    if not root.is_dir():
        _extract(locked, arch, root, log)
    linker, triplet = LINKERS[arch]
    candidates = [root / folder / linker for folder in ("usr/lib64", "usr/lib", f"usr/lib/{triplet}")]
    start = next((path for path in candidates if path.exists()), None)
    if start is None:
        raise HostError(f"{root} has no {linker}")
    libraries = f"{root}/usr/lib/{triplet}:{root}/usr/lib"
    # Not -I: Python finds its library by PYTHONHOME, since the kernel was told to run the linker.
    # A fixed seed, since constants that are sets are written in the order of their hashes.
    return [
        "env", "-i", *(f"{name}={value}" for name, value in procs.FIXED.items()),
        f"PYTHONHOME={root}/usr", "PYTHONNOUSERSITE=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0", "PYTHONUTF8=1",
        str(start), "--inhibit-cache", "--library-path", libraries, f"{root}/usr/bin/python{locked.python}", "-s",
    ]  # fmt: skip


def compile_tree(python: Sequence[str], tree: Path, prefix: str, names: Sequence[str]) -> list[str]:
    """Compiles files of a tree, and returns the .pyc files beside them, sorted; all paths are relative to the tree.

    `python` is what extract_python() returns, `prefix` is the tree's folder in the image. A source that does not
    compile has no .pyc. Raises ProgramError if Python fails.
    """
    workers = str(os.cpu_count() or 1)
    argv = [*python, str(SCRIPT), str(tree), prefix, workers]
    procs.capture(argv, timeout_s=COMPILE_TIMEOUT_S, stdin="\n".join(names))
    folders = sorted({(tree / name).parent for name in names})
    return sorted(str(path.relative_to(tree)) for folder in folders for path in folder.glob("__pycache__/*.pyc"))


def _extract(locked: Lock, arch: str, root: Path, log: Log) -> None:
    packages = [package for package in locked.interpreter if package.arch in {arch, "all"}]
    title = f"Python {locked.python} for this machine"
    files = debs.fetch_debs(packages, locked.suite, log, image=locked.name, title=title)
    part = root.with_name(root.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    for package in packages:
        with deb.data(files[package.sha256]) as archive:
            for member in archive:
                if deb.merged(member.name).startswith(USED):
                    _extract_member(archive, member, part)
    part.replace(root)


def _extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Extract by hand: Python before 3.11.4 has no extraction filters, and 3.14 refuses absolute links."""
    path = root / deb.merged(member.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        path.symlink_to(_link_target(member.linkname, root, path))
    elif member.islnk():
        path.hardlink_to(root / deb.merged(member.linkname))
    elif (content := archive.extractfile(member)) is not None:
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)
        path.chmod(member.mode & 0o755)


def _link_target(target: str, root: Path, link: Path) -> str:
    """Returns a link's target as it is, or for an absolute one the package's own file, never this machine's."""
    if not target.startswith("/"):
        return target
    return os.path.relpath(root / deb.merged(target.lstrip("/")), link.parent)
