"""Decides which pins a new lock keeps, and the day as of which the index is asked."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from pipeline.config.models import Additions, Python
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.lock.contents import Lock
from pipeline.lock.resolver import Wheel, WheelRequest, resolve_wheels
from pipeline.lock.wheel_tags import WheelTarget

Resolve = Callable[[WheelRequest, Log], tuple[Wheel, ...]]


def same_parts(old: Mapping[str, Any], new: Mapping[str, Any], keys: Sequence[str]) -> bool:
    """Returns whether two requests are equal in these keys."""
    return all(old.get(key) == new.get(key) for key in keys)


def refuse_unknown_names(names: frozenset[str], lock: Lock, image_name: str) -> None:
    """Raises ConfigError if a package whose pin is to move is not in the lock."""
    for name in sorted(names - lock.pinned):
        near = difflib.get_close_matches(name, lock.pinned, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"lockfiles/{image_name}.lock.json: no package {name!r} is locked", hint=hint)


def pin_wheels(
    name: str,
    python: Python | Additions,
    before: Lock | None,
    moving: frozenset[str],
    target: WheelTarget,
    log: Log,
    resolve: Resolve = resolve_wheels,
) -> tuple[tuple[Wheel, ...], str]:
    """Returns the wheels, and the day as of which they were resolved: the old lock's if possible, else today.

    `moving` are the packages of the old lock whose pins are not kept. Raises ConfigError for a cut-off date in the
    future, and what `resolve` raises.
    """
    today = datetime.now(UTC).date()
    if python.cutoff and date.fromisoformat(python.cutoff) > today:
        raise ConfigError(f"image.yaml: python.cutoff: {python.cutoff} is in the future")
    cutoffs = [python.cutoff or str(today)]
    if before and not moving and not python.cutoff and before.cutoff != cutoffs[0]:
        cutoffs.insert(0, before.cutoff)
    for cutoff in cutoffs:
        request = WheelRequest(
            requirements=python.requirements,
            constraints=python.constraints,
            target=target,
            cutoff=cutoff,
            origin=f"dockerfiles/{name}/image.yaml",
            pins={wheel.name: wheel.version for wheel in before.wheels if wheel.name not in moving} if before else {},
        )
        try:
            wheels = resolve(request, log)
        except ConfigError as error:
            if cutoff == cutoffs[-1]:
                raise
            log.line(f"does not resolve as of {cutoff}, so as of {cutoffs[-1]}: {error}")
            continue
        log.line(f"{len(wheels)} wheels as of {cutoff}, {sum(wheel.size for wheel in wheels) / 1e6:.0f} MB")
        return wheels, cutoff
    raise AssertionError("the last date returns or raises")


def epoch_of(cutoff: str) -> int:
    """Returns the first second of a day, as in 2026-01-31, in seconds since 1970."""
    day = date.fromisoformat(cutoff)
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
