"""Locks an image on top of another image: the base's digest, what the base holds, and the wheels that are added."""

from functools import partial
from pathlib import Path

from pipeline.config.models import CombinedImage
from pipeline.core import platforms
from pipeline.core.errors import Cancelled, ConfigError, HostError, TandemError
from pipeline.core.log import Log
from pipeline.foreign import facts_cache, launcher_layer, pull
from pipeline.foreign.facts import ImageFacts
from pipeline.lock import additions, debs, pins, resolver, uv
from pipeline.lock.apt import private_apt
from pipeline.lock.contents import SUITES, CombinedLock
from pipeline.lock.debs import Deb
from pipeline.lock.request import request_of

BASE = "base"
"""The name in TANDEM_LOCK=upgrade:NAME,… that stands for the digest behind the base's tag."""
KEYS_OF_WHEELS = ("platform", "requirements", "constraints", "cutoff")
"""The parts of a request that decide the wheels."""


def lock_combined_image(
    name: str, image: CombinedImage, root: Path, old: CombinedLock | None, names: frozenset[str] | None, log: Log
) -> CombinedLock:
    """Returns a lock that answers the image.

    `names` are the packages whose pins may move: None for none, the empty set for all. BASE may be among them. Raises
    ConfigError, also for an image.yaml that says which images to combine but not yet how; TandemError if registry or
    index cannot be reached.
    """
    origin = f"dockerfiles/{name}/image.yaml"
    resolver.refuse_unreadable(origin, image.python.requirements, image.python.constraints)
    before = old if names is None or names else None
    moving = names or frozenset()
    if before and moving - {BASE}:
        pins.refuse_unknown_names(moving - {BASE}, before, name)
    base, facts = _lock_base(name, image, root, before if BASE not in moving else None, log)
    launcher_layer.refuse_unusable_base(origin, launcher_layer.plan_layer(facts, image.workdir))
    target = additions.wheel_target(facts)
    unchanged = before and pins.same_parts(before.request, request_of(image), KEYS_OF_WHEELS) and before.base == base
    if before and unchanged and not moving - {BASE}:
        wheels, cutoff = before.wheels, before.cutoff
    else:
        resolve = partial(additions.resolve_additions, facts)
        wheels, cutoff = pins.pin_wheels(name, image.python, before, moving, target, log, resolve)
    return CombinedLock(
        name=name,
        request=request_of(image),
        cutoff=cutoff,
        epoch=before.epoch if before else pins.epoch_of(cutoff),
        wheels=wheels,
        interpreter=_lock_interpreter(facts.python.minor, before, moving, log),
        tools={"uv": uv.find_version(), "apt": debs.apt_version()},
        base=base,
        facts=facts,
    )


def _lock_base(
    name: str, image: CombinedImage, root: Path, before: CombinedLock | None, log: Log
) -> tuple[str, ImageFacts]:
    """Return NAME@digest of the base, and its facts, which are read again only if the digest is another one."""
    origin = f"dockerfiles/{name}/image.yaml"
    if image.base is None:
        raise ConfigError(
            f"{origin}: combine says which two images, and base does not yet say how",
            hint=f"`./doitw advise {name}` reads both and writes base",
        )
    reference = image.base.image
    if before and before.request["image"] == reference and before.platform == image.platform:
        return before.base, before.facts
    try:
        digest = pull.resolve_digest(reference, image.platform, log)
        base = f"{pull.repository_of(reference)}@{digest}"
        if before and before.base == base:
            return base, before.facts
        return base, facts_cache.scan_image(reference, digest, image.platform, root, log).facts
    except (Cancelled, HostError):
        raise
    except TandemError as error:
        raise TandemError(f"{origin}: base.image: {error}", hint=error.hint) from error


def _lock_interpreter(python: str, before: CombinedLock | None, moving: frozenset[str], log: Log) -> tuple[Deb, ...]:
    """Return the packages of a Python of that version for every build machine; none if no Debian suite has it."""
    suite = SUITES.get(python)
    if suite is None:
        log.line(f"no Debian suite has Python {python}: what is added comes without bytecode")
        return ()
    kept = [deb for deb in before.interpreter if deb.name not in moving] if before else []
    if before and before.python == python and len(kept) == len(before.interpreter):
        return before.interpreter
    packages: set[Deb] = set()
    for arch in platforms.MACHINES:
        with private_apt(suite, arch, log) as apt:
            packages.update(apt.resolve([f"python{python}-minimal", f"libpython{python}-stdlib"], kept))
    return tuple(sorted(packages))
