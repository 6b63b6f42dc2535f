"""Which pins a new lock keeps, and as of which day the index is asked."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from pipeline.config.models import Additions, Python
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.lock import resolver as resolve
from pipeline.lock.contents import Lock
from pipeline.lock.resolver import Wheel
from pipeline.lock.wheel_tags import Target

Resolver = Callable[[resolve.Request, Log], tuple[Wheel, ...]]


def same(old: Mapping[str, Any], new: Mapping[str, Any], keys: Sequence[str]) -> bool:
    """Whether two requests are alike in these keys."""
    return all(old.get(key) == new.get(key) for key in keys)


def refuse_unknown(names: frozenset[str], lock: Lock, name: str) -> None:
    """Raise ConfigError if a package whose pin shall move is not in the lock."""
    for wanted in sorted(names - lock.pinned):
        near = difflib.get_close_matches(wanted, lock.pinned, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"lockfiles/{name}.lock.json: no package {wanted!r} is locked", hint=hint)


def wheels(
    name: str,
    asked: Python | Additions,
    before: Lock | None,
    moving: frozenset[str],
    fits: Target,
    log: Log,
    resolver: Resolver = resolve.wheels,
) -> tuple[tuple[Wheel, ...], str]:
    """The wheels, and the cut-off date that they are of: the old one if it will do, and today's if not."""
    today = datetime.now(UTC).date()
    if asked.cutoff and date.fromisoformat(asked.cutoff) > today:
        raise ConfigError(f"image.yaml: python.cutoff: {asked.cutoff} is still to come")
    dates = [asked.cutoff or str(today)]
    if before and not moving and not asked.cutoff and before.cutoff != dates[0]:
        dates.insert(0, before.cutoff)
    for cutoff in dates:
        wanted = resolve.Request(
            requirements=asked.requirements,
            constraints=asked.constraints,
            target=fits,
            cutoff=cutoff,
            origin=f"dockerfiles/{name}/image.yaml",
            pins={wheel.name: wheel.version for wheel in before.wheels if wheel.name not in moving} if before else {},
        )
        try:
            found = resolver(wanted, log)
        except ConfigError as error:
            if cutoff == dates[-1]:
                raise
            log.line(f"not to be had as of {cutoff}, so as of {dates[-1]}: {error}")
            continue
        log.line(f"{len(found)} wheels as of {cutoff}, {sum(wheel.size for wheel in found) / 1e6:.0f} MB")
        return found, cutoff
    raise AssertionError("the last date returns or raises")


def epoch(cutoff: str) -> int:
    """A day's first second, in seconds since 1970."""
    day = date.fromisoformat(cutoff)
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
