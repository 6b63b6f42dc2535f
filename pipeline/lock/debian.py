"""request → lock of an image made from Debian packages: apt for the .debs, uv for the wheels."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.config.models import DebianImage
from pipeline.core import platforms
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.lock import apt as aptroot
from pipeline.lock import debs, pins, resolver
from pipeline.lock.contents import DebianLock
from pipeline.lock.debs import Deb
from pipeline.lock.request import request
from pipeline.lock.wheel_tags import Target

OF_DEBS = ("platform", "debian", "packages", "python")
OF_WHEELS = ("platform", "debian", "python", "requirements", "constraints", "cutoff")


def make(name: str, image: DebianImage, old: DebianLock | None, names: frozenset[str] | None, log: Log) -> DebianLock:
    """The lock that answers the image; `names` are the packages whose pins may move: None for none, empty for all."""
    asked = request(image)
    everything = names is not None and not names
    if names and old is not None:
        pins.refuse_unknown(names, old, name)
    moving = names or frozenset()
    before = None if everything else old
    if before and pins.same(before.request, asked, OF_DEBS) and not any(d.name in moving for d in before.debs):
        packages, interpreter = before.debs, before.interpreter
    else:
        packages, interpreter = _debs(name, image, before, moving, log)
    fits = target(image.platform.partition("/")[2], image.python.version, packages, name)
    unchanged = before and pins.same(before.request, asked, OF_WHEELS) and glibc(before.debs) == fits.glibc
    if before and unchanged and not any(wheel.name in moving for wheel in before.wheels):
        wheels, cutoff = before.wheels, before.cutoff
    else:
        wheels, cutoff = pins.wheels(name, image.python, before, moving, fits, log)
    return DebianLock(
        name=name,
        request=asked,
        cutoff=cutoff,
        # Kept as long as it can be: another epoch is another mtime in every layer.
        epoch=before.epoch if before else pins.epoch(cutoff),
        wheels=wheels,
        debs=packages,
        interpreter=interpreter,
        tools={"uv": resolver.version(), "apt": debs.version()},
    )


def _debs(
    name: str, image: DebianImage, before: DebianLock | None, moving: frozenset[str], log: Log
) -> tuple[tuple[Deb, ...], tuple[Deb, ...]]:
    """The image's packages, and a Python of the same suite for whichever machine builds."""
    origin = f"dockerfiles/{name}/image.yaml"
    arch, version = image.platform.partition("/")[2], image.python.version
    kept = [deb for deb in before.debs if deb.name not in moving] if before else []
    kept_interpreter = [deb for deb in before.interpreter if deb.name not in moving] if before else []
    wanted = [f"python{version}-minimal", f"libpython{version}-stdlib"]

    def one(machine: str) -> tuple[tuple[Deb, ...], tuple[Deb, ...]]:
        with aptroot.private(image.base.debian, machine, log, f"{origin}: base.debian") as apt:
            packages = apt.resolve(image.base.packages, kept, f"{origin}: base.packages") if machine == arch else ()
            if machine == arch:
                _python_of(packages, version, origin)
            return packages, apt.resolve(wanted, kept_interpreter, f"{origin}: python.version")

    with ThreadPoolExecutor(len(platforms.MACHINES)) as pool:
        found = list(pool.map(one, platforms.MACHINES))
    packages = next(of_image for of_image, _ in found if of_image)
    interpreter = {deb for _, of_machine in found for deb in of_machine}
    log.line(f"{len(packages)} Debian packages for {arch}, {sum(deb.size for deb in packages) / 1e6:.0f} MB")
    return packages, tuple(sorted(interpreter))


def _python_of(packages: Sequence[Deb], version: str, origin: str) -> None:
    """Raise ConfigError if the base does not bring the image's interpreter."""
    if f"python{version}-minimal" not in {deb.name for deb in packages}:
        found = ", ".join(deb.name for deb in packages if re.fullmatch(r"python3\.\d+-minimal", deb.name)) or "none"
        raise ConfigError(
            f"{origin}: python.version is {version}, but base.packages bring {found}",
            hint=f"add python{version} to base.packages, or set python.version to what the suite has",
        )


def target(arch: str, python: str, packages: Sequence[Deb], name: str) -> Target:
    """What wheels must fit beside these packages. Raises ConfigError if no glibc is among them."""
    found = glibc(packages)
    if found is None:
        raise ConfigError(f"dockerfiles/{name}/image.yaml: base.packages bring no libc6, so no wheel can run")
    return Target(arch, python, found)


def glibc(packages: Sequence[Deb]) -> int | None:
    """The minor version of the glibc 2 among packages."""
    for deb in packages:
        if deb.name == "libc6" and (match := re.match(r"2\.(\d+)", deb.version)):
            return int(match[1])
    return None
