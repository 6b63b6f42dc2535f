"""locked debs → the image of a lab machine: Debian's own engine and ssh server, for this machine's architecture."""

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
from pipeline.image import base, deb, maintainer_files, rootfs
from pipeline.image.rootfs import RootfsWriter
from pipeline.lock import debs
from pipeline.lock.debs import Deb
from pipeline.lock.service_packages import LAB

REPOSITORY = "tandem/lab"
PROBES = Path(__file__).parents[1] / "probes" / "lab"
OURS = "etc/tandem"
USUAL = 20  # seconds that the engine takes for it
FILES = {
    f"{OURS}/start": ("start", 0o755),
    f"{OURS}/sshd_config": ("sshd_config", 0o644),
    "usr/bin/nvidia-container-runtime-hook": ("nvidia-container-runtime-hook", 0o755),
}
# What the maintainer script of openssh-server makes.
USER = b"sshd:*:100:65534::/run/sshd:/usr/sbin/nologin\n"
CHANGES = (
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    # runc and dockerd then leave AppArmor to the machine's own kernel, as systemd's container interface has it.
    "ENV container=docker",
    f"LABEL {LABEL}=lab",
    f'CMD ["/{OURS}/start"]',
)


def tag(locked: Sequence[Deb]) -> str:
    """The image's name; it follows from the packages, from what is laid over them, and from the code that does it."""
    text = hashlib.sha256()
    for package in _mine(locked):
        text.update(package.sha256.encode())
    sources = [Path(__file__), *(Path(str(module.__file__)) for module in (maintainer_files, rootfs))]
    for path in (*sources, *(PROBES / name for name, _ in FILES.values())):
        text.update(path.read_bytes())
    return f"{REPOSITORY}:{text.hexdigest()[:12]}"


def make(locked: Sequence[Deb], scratch: Path, log: Log) -> str:
    """The name of the image in the local engine's store, made if it is not there.

    Raises HostError where nothing is locked for this machine, TandemError for a package that cannot be had.
    """
    name = tag(locked)
    if engine.find_image("local", name) is not None:
        return name
    mine = _mine(locked)
    files = debs.fetch_debs(mine, LAB.suite, log, image=LAB.name, title="packages of the lab")
    with step(log, f"{name}, once: {len(mine)} packages into one root"):
        _root(mine, files, scratch / "root.tar", log)
    with step(log, f"{name} into the engine's store"):
        _hand_over(scratch / "root.tar", name, log)
    if engine.find_image("local", name) is None:
        raise TandemError(f"the engine has no image {name} after its import")
    return name


def _hand_over(file: Path, name: str, log: Log) -> None:
    """Have the engine make an image of a root; it compresses that first, and says nothing meanwhile."""
    repository, _, version = name.partition(":")
    api = engine.client().api
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(api.import_image_from_file, str(file), repository, version, changes=list(CHANGES))
        wait_until(done.done, timeout_s=600, interval_s=0.5, log=log, title="handing it over", usual_s=USUAL)
        done.result()


def _mine(locked: Sequence[Deb]) -> list[Deb]:
    return sorted(LAB.of_this_machine(locked, hint="the lab runs on amd64 and arm64"))


def _root(packages: Sequence[Deb], files: dict[str, Path], into: Path, log: Log) -> None:
    content: dict[str, bytes] = {}

    def keep(path: str, file: IO[bytes]) -> None:
        content[path] = file.read()

    with RootfsWriter(into, 0) as root:
        for number, package in enumerate(packages):
            log.progress("extracting", number, len(packages), "packages")
            with deb.data(files[package.sha256]) as archive:
                root.add_package(package.name, archive, keep)
        content[maintainer_files.PASSWD] += USER
        base.add_maintainer_files(root, content)
        for path, (name, mode) in FILES.items():
            root.file(path, (PROBES / name).read_bytes(), mode)
