"""Locks an image made from Debian packages: apt resolves the packages, uv the wheels."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.config.models import DebianImage
from pipeline.core import platforms
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.lock import debs, pins, uv
from pipeline.lock.apt import private_apt
from pipeline.lock.contents import DebianLock
from pipeline.lock.debs import Deb
from pipeline.lock.request import request_of
from pipeline.lock.wheel_tags import WheelTarget

KEYS_OF_DEBS = ("platform", "debian", "packages", "python")
"""The parts of a request that decide the Debian packages."""
KEYS_OF_WHEELS = ("platform", "debian", "python", "requirements", "constraints", "cutoff")
"""The parts of a request that decide the wheels."""


def lock_debian_image(
    name: str, image: DebianImage, old: DebianLock | None, names: frozenset[str] | None, log: Log
) -> DebianLock:
    """Returns a lock that answers the image.

    `names` are the packages whose pins may move: None for none, the empty set for all. Raises ConfigError; TandemError
    if index or mirror cannot be reached.
    """
    request = request_of(image)
    if names and old is not None:
        pins.refuse_unknown_names(names, old, name)
    moving = names or frozenset()
    before = old if names is None or names else None
    same_debs = before and pins.same_parts(before.request, request, KEYS_OF_DEBS)
    if before and same_debs and not any(deb.name in moving for deb in before.debs):
        packages, interpreter = before.debs, before.interpreter
    else:
        packages, interpreter = _lock_packages(name, image, before, moving, log)
    target = wheel_target(image.platform.partition("/")[2], image.python.version, packages, name)
    same_wheels = before and pins.same_parts(before.request, request, KEYS_OF_WHEELS)
    unchanged = before and same_wheels and glibc_minor(before.debs) == target.glibc
    if before and unchanged and not any(wheel.name in moving for wheel in before.wheels):
        wheels, cutoff = before.wheels, before.cutoff
    else:
        wheels, cutoff = pins.pin_wheels(name, image.python, before, moving, target, log)
    return DebianLock(
        name=name,
        request=request,
        cutoff=cutoff,
        # Kept as long as possible: another epoch is another mtime in every layer.
        epoch=before.epoch if before else pins.epoch_of(cutoff),
        wheels=wheels,
        debs=packages,
        interpreter=interpreter,
        tools={"uv": uv.find_version(), "apt": debs.apt_version()},
    )


def _lock_packages(
    name: str, image: DebianImage, before: DebianLock | None, moving: frozenset[str], log: Log
) -> tuple[tuple[Deb, ...], tuple[Deb, ...]]:
    """Return the image's packages, and those of a Python of the same suite for every build machine."""
    origin = f"dockerfiles/{name}/image.yaml"
    target_arch, version = image.platform.partition("/")[2], image.python.version
    kept = [deb for deb in before.debs if deb.name not in moving] if before else []
    kept_interpreter = [deb for deb in before.interpreter if deb.name not in moving] if before else []
    python = [f"python{version}-minimal", f"libpython{version}-stdlib"]

    def resolve(arch: str) -> tuple[tuple[Deb, ...], tuple[Deb, ...]]:
        with private_apt(image.base.debian, arch, log, f"{origin}: base.debian") as apt:
            packages: tuple[Deb, ...] = ()
            if arch == target_arch:
                packages = apt.resolve(image.base.packages, kept, f"{origin}: base.packages")
                _refuse_without_python(packages, version, origin)
            return packages, apt.resolve(python, kept_interpreter, f"{origin}: python.version")

    with ThreadPoolExecutor(len(platforms.MACHINES)) as pool:
        resolved = list(pool.map(resolve, platforms.MACHINES))
    packages = next(of_image for of_image, _ in resolved if of_image)
    interpreter = {deb for _, of_machine in resolved for deb in of_machine}
    log.line(f"{len(packages)} Debian packages for {target_arch}, {sum(deb.size for deb in packages) / 1e6:.0f} MB")
    return packages, tuple(sorted(interpreter))


def _refuse_without_python(packages: Sequence[Deb], version: str, origin: str) -> None:
    """Raise ConfigError if the packages do not bring the image's interpreter."""
    if f"python{version}-minimal" not in {deb.name for deb in packages}:
        brought = ", ".join(deb.name for deb in packages if re.fullmatch(r"python3\.\d+-minimal", deb.name)) or "none"
        raise ConfigError(
            f"{origin}: python.version is {version}, but base.packages bring {brought}",
            hint=f"add python{version} to base.packages, or set python.version to what the suite has",
        )


def wheel_target(arch: str, python: str, packages: Sequence[Deb], name: str) -> WheelTarget:
    """Returns what wheels must fit beside these packages. Raises ConfigError if no glibc is among them."""
    glibc = glibc_minor(packages)
    if glibc is None:
        raise ConfigError(f"dockerfiles/{name}/image.yaml: base.packages bring no libc6, so no wheel can run")
    return WheelTarget(arch, python, glibc)


def glibc_minor(packages: Sequence[Deb]) -> int | None:
    """Returns the minor version of the glibc 2 among packages; None if there is none."""
    for deb in packages:
        if deb.name == "libc6" and (match := re.match(r"2\.(\d+)", deb.version)):
            return int(match[1])
    return None
