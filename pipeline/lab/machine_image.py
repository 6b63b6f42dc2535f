"""Locked Debian packages → the image of a lab machine, with Debian's own Docker engine and ssh server.

It has the architecture of this machine.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from pipeline.core.errors import TandemError
from pipeline.core.log import Log, step
from pipeline.core.waiting import wait_until
from pipeline.host import engine
from pipeline.host.engine import LABEL
from pipeline.image import deb, maintainer_files, rootfs
from pipeline.image.rootfs import RootfsWriter
from pipeline.lock import debs
from pipeline.lock.debs import Deb
from pipeline.lock.service_packages import LAB

REPOSITORY = "tandem/lab"
DECIDE_BYTES = (deb, maintainer_files, rootfs)
"""The modules, beside this one, whose code decides the bytes of the image."""
PROBES = Path(__file__).parents[1] / "probes" / "lab"
OUR_FOLDER = "etc/tandem"
USUAL_IMPORT_S, IMPORT_TIMEOUT_S = 20, 600
FILES = {
    f"{OUR_FOLDER}/start": ("start", 0o755),
    f"{OUR_FOLDER}/sshd_config": ("sshd_config", 0o644),
    "usr/bin/nvidia-container-runtime-hook": ("nvidia-container-runtime-hook", 0o755),
}
"""Our own files in the image: the name below PROBES and the mode, by path."""
SSHD_USER = b"sshd:*:100:65534::/run/sshd:/usr/sbin/nologin\n"
"""The line of passwd(5) that the maintainer script of openssh-server adds."""
CHANGES = (
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    # runc and dockerd then leave AppArmor to the machine's own kernel, as systemd's container interface has it.
    "ENV container=docker",
    f"LABEL {LABEL}=lab",
    f'CMD ["/{OUR_FOLDER}/start"]',
)


def image_name(locked: Sequence[Deb]) -> str:
    """Returns the image's name, which follows from the packages, our own files, and the code that makes the image."""
    digest = hashlib.sha256()
    for package in _own_packages(locked):
        digest.update(package.sha256.encode())
    sources = [Path(__file__), *(Path(str(module.__file__)) for module in DECIDE_BYTES)]
    for path in (*sources, *(PROBES / name for name, _ in FILES.values())):
        digest.update(path.read_bytes())
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def make_image(locked: Sequence[Deb], scratch: Path, log: Log) -> str:
    """Makes the image in the local engine's store unless it is there, and returns its name.

    Raises HostError if nothing is locked for this machine, TandemError for a package that cannot be fetched.
    """
    name = image_name(locked)
    if engine.find_image("local", name) is not None:
        return name
    packages = _own_packages(locked)
    files = debs.fetch_debs(packages, LAB.suite, log, image=LAB.name, title="packages of the lab")
    with step(log, f"{name}, once: {len(packages)} packages into one root"):
        _write_root(packages, files, scratch / "root.tar", log)
    with step(log, f"{name} into the engine's store"):
        _import_root(scratch / "root.tar", name, log)
    if engine.find_image("local", name) is None:
        raise TandemError(f"the engine has no image {name} after its import")
    return name


def _import_root(file: Path, name: str, log: Log) -> None:
    """Makes the engine import a root as an image. It compresses the root first, without any progress of its own."""
    repository, _, version = name.partition(":")
    api = engine.client().api
    with ThreadPoolExecutor(1) as pool:
        imported = pool.submit(api.import_image_from_file, str(file), repository, version, changes=list(CHANGES))
        wait_until(
            imported.done, timeout_s=IMPORT_TIMEOUT_S, interval_s=0.5, log=log, title="import", usual_s=USUAL_IMPORT_S
        )
        imported.result()


def _own_packages(locked: Sequence[Deb]) -> list[Deb]:
    return sorted(LAB.of_this_machine(locked, hint="the lab runs on amd64 and arm64"))


def _write_root(packages: Sequence[Deb], files: dict[str, Path], into: Path, log: Log) -> None:
    content: dict[str, bytes] = {}

    def keep(path: str, file: IO[bytes]) -> None:
        content[path] = file.read()

    with RootfsWriter(into, 0) as root:
        for number, package in enumerate(packages):
            log.progress("extracting", number, len(packages), "packages")
            with deb.data(files[package.sha256]) as archive:
                root.add_package(package.name, archive, keep)
        content[maintainer_files.PASSWD] += SSHD_USER
        root.add_maintainer_files(content)
        for path, (name, mode) in FILES.items():
            root.file(path, (PROBES / name).read_bytes(), mode)
