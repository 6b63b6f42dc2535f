"""request → lock of an image on top of another: that one's digest, what it holds, and the wheels that are added."""

from functools import partial
from pathlib import Path

from pipeline.config.models import CombinedImage
from pipeline.core import platforms
from pipeline.core.errors import Cancelled, ConfigError, HostError, TandemError
from pipeline.core.log import Log
from pipeline.foreign import facts_cache, launcher_layer, pull
from pipeline.foreign.facts import ImageFacts
from pipeline.lock import additions, debs, pins, resolver
from pipeline.lock import apt as aptroot
from pipeline.lock.contents import SUITES, CombinedLock
from pipeline.lock.debs import Deb
from pipeline.lock.request import request

BASE = "base"
"""In TANDEM_LOCK=upgrade:NAME,…: the digest behind the base's tag."""
OF_WHEELS = ("platform", "requirements", "constraints", "cutoff")


def make(
    name: str, image: CombinedImage, root: Path, old: CombinedLock | None, names: frozenset[str] | None, log: Log
) -> CombinedLock:
    """The lock that answers the image; `names` are the packages whose pins may move: None for none, empty for all.

    `base` among them is the digest behind the base's tag. Raises ConfigError, also for an image.yaml that says what to
    combine and not yet how; TandemError if registry or index cannot be reached.
    """
    origin = f"dockerfiles/{name}/image.yaml"
    resolver.readable(origin, image.python.requirements, image.python.constraints)
    before = old if names is None or names else None
    moving = names or frozenset()
    if before and moving - {BASE}:
        pins.refuse_unknown(moving - {BASE}, before, name)
    base, reading = _base(name, image, root, before if BASE not in moving else None, log)
    launcher_layer.refuse_unusable_base(origin, launcher_layer.plan_layer(reading, image.workdir))
    fits = additions.target(reading)
    unchanged = before and pins.same(before.request, request(image), OF_WHEELS) and before.base == base
    if before and unchanged and not moving - {BASE}:
        wheels, cutoff = before.wheels, before.cutoff
    else:
        wheels, cutoff = pins.wheels(name, image.python, before, moving, fits, log, partial(_additions, reading))
    return CombinedLock(
        name=name,
        request=request(image),
        cutoff=cutoff,
        epoch=before.epoch if before else pins.epoch(cutoff),
        wheels=wheels,
        interpreter=_interpreter(reading.python.minor, before, moving, log),
        tools={"uv": resolver.version(), "apt": debs.version()},
        base=base,
        reading=reading,
    )


def _additions(reading: ImageFacts, asked: resolver.Request, log: Log) -> tuple[resolver.Wheel, ...]:
    return additions.additions(asked, reading, log)


def _base(name: str, image: CombinedImage, root: Path, before: CombinedLock | None, log: Log) -> tuple[str, ImageFacts]:
    """NAME@digest of the base, and what it holds; read anew only if the digest is another one."""
    origin = f"dockerfiles/{name}/image.yaml"
    if image.base is None:
        raise ConfigError(
            f"{origin}: combine says which two images, and base does not yet say how",
            hint=f"`./doitw advise {name}` reads both and writes base",
        )
    asked = image.base.image
    if before and before.request["image"] == asked and before.platform == image.platform:
        return before.base, before.reading
    try:
        digest = pull.resolve_digest(asked, image.platform, log)
        base = f"{pull.repository_of(asked)}@{digest}"
        if before and before.base == base:
            return base, before.reading
        return base, facts_cache.scan_image(asked, digest, image.platform, root, log).reading
    except (Cancelled, HostError):
        raise
    except TandemError as error:
        raise TandemError(f"{origin}: base.image: {error}", hint=error.hint) from error


def _interpreter(python: str, before: CombinedLock | None, moving: frozenset[str], log: Log) -> tuple[Deb, ...]:
    """A Python of that version for whichever machine builds; none if no Debian suite has it."""
    suite = SUITES.get(python)
    if suite is None:
        log.line(f"no Debian suite has Python {python}: what is added comes without bytecode")
        return ()
    kept = [deb for deb in before.interpreter if deb.name not in moving] if before else []
    if before and before.python == python and len(kept) == len(before.interpreter):
        return before.interpreter
    found: set[Deb] = set()
    for machine in platforms.MACHINES:
        with aptroot.private(suite, machine, log) as apt:
            found.update(apt.resolve([f"python{python}-minimal", f"libpython{python}-stdlib"], kept))
    return tuple(sorted(found))
