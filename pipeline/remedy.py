"""What to write instead: the oldest version after a pinned one that really resolves with the rest of a request."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline import conflict
from pipeline.errors import Cancelled, TandemError

WITHIN = 60  # seconds for one look; with a warm cache one takes 6 s for vLLM and all that it needs
ALTOGETHER = 150  # seconds after which no further look begins
TRIED = 3  # pinned requirements that are looked at

Solve = Callable[[Sequence[str]], dict[str, str]]
"""Answers requirements with the oldest versions, by name; raises Clash if there is no answer."""


@dataclass(frozen=True)
class Later:
    """A version of a distribution that resolves where `pin` does not, and whether none between the two does."""

    pin: str
    name: str
    version: str
    oldest: bool


def later(
    requirements: Sequence[str], text: str, solve: Solve, now: Callable[[], float] = time.monotonic
) -> tuple[Later, ...]:
    """For each pinned requirement that a resolver's explanation names, what resolves instead.

    Nothing is said of a pin where nothing was found, or where the index did not answer.
    """
    found = []
    until = now() + ALTOGETHER
    pins = [item for item in requirements if pinned(item) and conflict.named(conflict.name_of(item), text)]
    for pin in pins[:TRIED]:
        others = [item for item in requirements if item != pin]
        if (better := _search(pin, others, solve, lambda: now() < until)) is not None:
            found.append(better)
    return tuple(found)


def words(found: Sequence[Later], origin: str) -> str:
    """The remedy as a hint; empty if there is none."""
    if not found:
        return ""
    each = [
        f"{one.name} {one.version} is the oldest after {one.pin} that resolves with the rest"
        if one.oldest
        else f"{one.name} {one.version} resolves with the rest, {one.pin} does not"
        for one in found
    ]
    versions = " or ".join(f"{one.name}=={one.version}" for one in found)
    return f"{'; '.join(each)}: ask for {versions} in {origin}"


def pinned(requirement: str) -> str:
    """The one version that a requirement allows; empty if it allows more."""
    from packaging.requirements import Requirement

    specs = list(Requirement(requirement).specifier)
    exact = len(specs) == 1 and specs[0].operator in {"==", "==="} and not specs[0].version.endswith(".*")
    return specs[0].version if exact else ""


def between(requirement: str, above: str, below: str = "") -> str:
    """A requirement with its versions replaced by those between two, both left out."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    # `>` wants no local part, and would leave 2.9.0+cu130 out for >2.9.0 all the same.
    lower = above.partition("+")[0]
    wish = Requirement(requirement)
    wish.specifier = SpecifierSet(f">{lower},<{below.partition('+')[0]}" if below else f">{lower}")
    return str(wish)


def _search(pin: str, others: Sequence[str], solve: Solve, early: Callable[[], bool]) -> Later | None:
    """Look for an older answer until there is none: which package uv decides on first would else decide ours."""
    name, version = conflict.name_of(pin), ""
    while early():
        try:
            version = solve([between(pin, pinned(pin), version), *others])[name]
        except conflict.Clash:
            return Later(pin, name, version, oldest=True) if version else None
        except Cancelled:
            raise
        except TandemError:
            break
    return Later(pin, name, version, oldest=False) if version else None
