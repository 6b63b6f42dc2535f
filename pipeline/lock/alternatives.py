"""Searches what to write instead of a pin: the oldest later version that resolves with the rest of a request."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.core.errors import Cancelled, TandemError
from pipeline.lock import conflict

SEARCH_TIMEOUT_S = 60
"""The time for one resolution; with a warm cache it takes 6 s for vLLM and everything that it needs."""
ALL_SEARCHES_S = 150
"""The time after which no further resolution begins."""
MOST_SEARCHED = 3
"""How many pinned requirements are tried."""

TimeLeft = Callable[[], bool]
Solve = Callable[[Sequence[str]], dict[str, str]]
"""Solves requirements; returns versions by name, or raises VersionConflict."""


@dataclass(frozen=True)
class BestVersion:
    """The result of a search for a version."""

    version: str
    """A version that resolves; empty if none was found."""
    proven: bool
    """Whether a better one is known not to resolve."""


@dataclass(frozen=True)
class LaterVersion:
    """A version of a distribution that resolves where `pin` does not."""

    pin: str
    name: str
    version: str
    oldest: bool
    """Whether no version between the two resolves."""


def later_versions(
    requirements: Sequence[str], text: str, solve: Solve, time_left: TimeLeft | None = None
) -> tuple[LaterVersion, ...]:
    """Returns what resolves instead of each pinned requirement that a resolver's explanation mentions.

    A pin is left out if no version was found, or if the index did not answer.
    """
    later, time_left = [], time_left or search_deadline()
    pins = [item for item in requirements if pinned_version(item) and conflict.mentions(conflict.name_of(item), text)]
    for pin in pins[:MOST_SEARCHED]:
        name, others = conflict.name_of(pin), [item for item in requirements if item != pin]
        above = partial(with_versions_between, pin, pinned_version(pin))
        best = best_version(name, above, others, solve, time_left)
        if best.version:
            later.append(LaterVersion(pin, name, best.version, best.proven))
    return tuple(later)


def describe_later(later: Sequence[LaterVersion], origin: str) -> str:
    """Returns the remedy as a hint; empty if there is none. `origin` is the file to edit."""
    if not later:
        return ""
    reasons = [
        f"{item.name} {item.version} is the oldest after {item.pin} that resolves with the rest"
        if item.oldest
        else f"{item.name} {item.version} resolves with the rest, {item.pin} does not"
        for item in later
    ]
    versions = " or ".join(with_version(item.pin, item.version) for item in later)
    return f"{'; '.join(reasons)}: ask for {versions} in {origin}"


def pinned_version(requirement: str) -> str:
    """Returns the one version that a requirement allows; empty if it allows more."""
    from packaging.requirements import Requirement

    specs = list(Requirement(requirement).specifier)
    exact = len(specs) == 1 and specs[0].operator in {"==", "==="} and not specs[0].version.endswith(".*")
    return specs[0].version if exact else ""


def with_versions_between(requirement: str, above: str = "", below: str = "") -> str:
    """Returns a requirement for the versions between two, both excluded; "" leaves that end open."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    parsed = Requirement(requirement)
    # Neither > nor < takes a local part (PEP 440).
    ends = [operator + end.partition("+")[0] for operator, end in ((">", above), ("<", below)) if end]
    parsed.specifier = SpecifierSet(",".join(ends))
    return str(parsed)


def with_version(requirement: str, version: str) -> str:
    """Returns a requirement for one version."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    parsed = Requirement(requirement)
    parsed.specifier = SpecifierSet(f"=={version}")
    return str(parsed)


def best_version(
    name: str, better_than: Callable[[str], str], others: Sequence[str], solve: Solve, time_left: TimeLeft
) -> BestVersion:
    """Returns the best version of a distribution that resolves with other requirements.

    `better_than` returns a requirement that only better versions than the given one meet, or all that will do for "".
    The search repeats until nothing resolves: otherwise the result would depend on which package uv decides first.
    """
    version = ""
    while time_left():
        try:
            version = solve([better_than(version), *others])[name]
        except conflict.VersionConflict:
            return BestVersion(version, proven=True)
        except Cancelled:
            raise
        except TandemError:
            break
    return BestVersion(version, proven=False)


def search_deadline(now: Callable[[], float] = time.monotonic) -> TimeLeft:
    """Returns a function that tells whether there is time for one more resolution."""
    end = now() + ALL_SEARCHES_S
    return lambda: now() < end
