"""request → lock: uv for the wheels, apt for the .debs, and no pin moves unless someone asks."""

import difflib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pipeline import aptroot, debs, lockfile, resolve
from pipeline.audit import MACHINES, Target
from pipeline.debs import Deb
from pipeline.errors import ConfigError
from pipeline.lockfile import Lock
from pipeline.log import Log
from pipeline.models import Image
from pipeline.resolve import Wheel

__all__ = ["Lock", "answers", "make", "read", "request", "target"]

read = lockfile.read
OF_DEBS = ("platform", "debian", "packages", "python")
OF_WHEELS = ("platform", "debian", "python", "requirements", "constraints", "cutoff")


def request(image: Image) -> dict[str, Any]:
    """What an image asks of its lock, spelled out by hand: a new key of image.yaml does not unsettle old locks."""
    return {
        "platform": image.platform,
        "debian": image.base.debian,
        "packages": sorted(set(image.base.packages)),
        "python": image.python.version,
        "requirements": sorted(set(image.python.requirements)),
        "constraints": sorted(set(image.python.constraints)),
        "cutoff": image.python.cutoff,
    }


def answers(lock: Lock, image: Image) -> bool:
    """Whether a lock answers what its image asks now."""
    return lock.request == request(image)


def target(lock: Lock) -> Target:
    """What the lock's wheels must fit."""
    return _target(lock.arch, lock.python, lock.debs, lock.name)


def make(name: str, image: Image, root: Path, mode: str, log: Log) -> Lock:
    """The lock that answers an image's request, written below `root`/lockfiles if it had to be made.

    `mode` is "" (a lock that answers is kept; else as few pins move as can be), "frozen" (ConfigError instead of
    resolving), "upgrade" (pins move), or "upgrade:NAME,…" (only these packages' pins move).
    """
    names = _upgraded(mode)
    old = _old(name, root, mode)
    if old is not None and names is None:
        if answers(old, image):
            return old
        log.line(f"lockfiles/{name}: " + differences(old.request, request(image)))
    if mode == "frozen":
        assert old is not None
        raise ConfigError(
            f"lockfiles/{name}.lock.json does not answer image.yaml: {differences(old.request, request(image))}",
            hint=f"`TANDEM_LOCK= ./doitw lock:{name}`, then commit lockfiles/",
        )
    made = _resolve(name, image, old, names, log)
    lockfile.write(made, root)
    return made


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What is asked now and was not, and the other way round, in words."""
    words = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, list) and isinstance(after, list):
            words += [f"{key}: {item} is new" for item in after if item not in before]
            words += [f"{key}: {item} is gone" for item in before if item not in after]
        elif before != after:
            words.append(f"{key}: {before} became {after}")
    return "; ".join(words)


def _upgraded(mode: str) -> frozenset[str] | None:
    """The packages whose pins may move: None for none, the empty set for all."""
    word, _, names = mode.partition(":")
    if mode in {"", "frozen"}:
        return None
    if word != "upgrade":
        raise ConfigError(f"TANDEM_LOCK={mode}: not one of frozen, upgrade, upgrade:NAME,…")
    return frozenset(filter(None, re.split(r"[,\s]+", names)))


def _old(name: str, root: Path, mode: str) -> Lock | None:
    """The lock as it is; None if there is none, or if it is damaged and all pins may move anyway."""
    if mode != "frozen" and not (root / lockfile.files(name)["head"]).exists():
        return None
    try:
        return read(name, root)
    except ConfigError:
        if mode == "upgrade":
            return None
        raise


def _resolve(name: str, image: Image, old: Lock | None, names: frozenset[str] | None, log: Log) -> Lock:
    asked = request(image)
    everything = names is not None and not names
    if names and old is not None:
        _known(names, old, name)
    moving = names or frozenset()
    before = None if everything else old
    if before and _same(before.request, asked, OF_DEBS) and not any(d.name in moving for d in before.debs):
        packages, interpreter = before.debs, before.interpreter
    else:
        packages, interpreter = _debs(image, before, moving, log)
    fits = _target(image.platform.partition("/")[2], image.python.version, packages, name)
    unchanged = before and _same(before.request, asked, OF_WHEELS) and _glibc(before.debs) == fits.glibc
    if before and unchanged and not any(wheel.name in moving for wheel in before.wheels):
        wheels, cutoff = before.wheels, before.cutoff
    else:
        wheels, cutoff = _wheels(name, image, before, moving, fits, log)
    return Lock(
        name=name,
        request=asked,
        cutoff=cutoff,
        # Kept as long as it can be: another epoch is another mtime in every layer.
        epoch=before.epoch if before else _epoch(cutoff),
        wheels=wheels,
        debs=packages,
        interpreter=interpreter,
        tools={"uv": resolve.version(), "apt": debs.version()},
    )


def _same(old: Mapping[str, Any], new: Mapping[str, Any], keys: Sequence[str]) -> bool:
    return all(old.get(key) == new.get(key) for key in keys)


def _known(names: frozenset[str], lock: Lock, name: str) -> None:
    """Raise ConfigError if a package whose pin shall move is not in the lock."""
    known = {wheel.name for wheel in lock.wheels} | {deb.name for deb in lock.debs}
    for wanted in sorted(names - known):
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"lockfiles/{name}.lock.json: no package {wanted!r} is locked", hint=hint)


def _debs(
    image: Image, before: Lock | None, moving: frozenset[str], log: Log
) -> tuple[tuple[Deb, ...], tuple[Deb, ...]]:
    """The image's packages, and a Python of the same suite for whichever machine builds."""
    arch, version = image.platform.partition("/")[2], image.python.version
    kept = [deb for deb in before.debs if deb.name not in moving] if before else []
    kept_interpreter = [deb for deb in before.interpreter if deb.name not in moving] if before else []
    wanted = [f"python{version}-minimal", f"libpython{version}-stdlib"]

    def one(machine: str) -> tuple[tuple[Deb, ...], tuple[Deb, ...]]:
        with aptroot.private(image.base.debian, machine, log) as apt:
            packages = apt.resolve(image.base.packages, kept) if machine == arch else ()
            if machine == arch:
                _python_of(packages, version)
            return packages, apt.resolve(wanted, kept_interpreter)

    with ThreadPoolExecutor(len(MACHINES)) as pool:
        found = list(pool.map(one, MACHINES))
    packages = next(of_image for of_image, _ in found if of_image)
    interpreter = {deb for _, of_machine in found for deb in of_machine}
    log.line(f"{len(packages)} Debian packages for {arch}, {sum(deb.size for deb in packages) / 1e6:.0f} MB")
    return packages, tuple(sorted(interpreter))


def _python_of(packages: Sequence[Deb], version: str) -> None:
    """Raise ConfigError if the base does not bring the image's interpreter."""
    if f"python{version}-minimal" not in {deb.name for deb in packages}:
        found = ", ".join(deb.name for deb in packages if re.fullmatch(r"python3\.\d+-minimal", deb.name)) or "none"
        raise ConfigError(
            f"image.yaml: python.version is {version}, but base.packages bring {found}",
            hint=f"add python{version} to base.packages, or set python.version to what the suite has",
        )


def _wheels(
    name: str, image: Image, before: Lock | None, moving: frozenset[str], fits: Target, log: Log
) -> tuple[tuple[Wheel, ...], str]:
    """The wheels, and the cut-off date that they are of: the old one if it will do, and today's if not."""
    today = datetime.now(UTC).date()
    if image.python.cutoff and date.fromisoformat(image.python.cutoff) > today:
        raise ConfigError(f"image.yaml: python.cutoff: {image.python.cutoff} is still to come")
    dates = [image.python.cutoff or str(today)]
    if before and not moving and not image.python.cutoff and before.cutoff != dates[0]:
        dates.insert(0, before.cutoff)
    for cutoff in dates:
        wanted = resolve.Request(
            requirements=image.python.requirements,
            constraints=image.python.constraints,
            target=fits,
            cutoff=cutoff,
            origin=f"dockerfiles/{name}/image.yaml",
            pins={wheel.name: wheel.version for wheel in before.wheels if wheel.name not in moving} if before else {},
        )
        try:
            wheels = resolve.wheels(wanted, log)
        except ConfigError as error:
            if cutoff == dates[-1]:
                raise
            log.line(f"not to be had as of {cutoff}, so as of {dates[-1]}: {error}")
            continue
        log.line(f"{len(wheels)} wheels as of {cutoff}, {sum(wheel.size for wheel in wheels) / 1e6:.0f} MB")
        return wheels, cutoff
    raise AssertionError("the last date returns or raises")


def _target(arch: str, python: str, packages: Sequence[Deb], name: str) -> Target:
    glibc = _glibc(packages)
    if glibc is None:
        raise ConfigError(f"dockerfiles/{name}/image.yaml: base.packages bring no libc6, so no wheel can run")
    return Target(arch, python, glibc)


def _glibc(packages: Sequence[Deb]) -> int | None:
    """The minor version of the glibc 2 among packages."""
    for deb in packages:
        if deb.name == "libc6" and (match := re.match(r"2\.(\d+)", deb.version)):
            return int(match[1])
    return None


def _epoch(cutoff: str) -> int:
    day = date.fromisoformat(cutoff)
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
