"""What to write instead: the oldest version after a pinned one that really resolves with the rest of a request."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.core.errors import Cancelled, TandemError
from pipeline.lock import conflict

WITHIN = 60  # seconds for one look; with a warm cache one takes 6 s for vLLM and all that it needs
ALTOGETHER = 150  # seconds after which no further look begins
TRIED = 3  # pinned requirements that are looked at

Early = Callable[[], bool]
Solve = Callable[[Sequence[str]], dict[str, str]]
"""Answers requirements with versions by name; raises Clash if there is no answer."""


@dataclass(frozen=True)
class Best:
    """A version that resolves, and whether it is proven that no better one does."""

    version: str
    proven: bool


@dataclass(frozen=True)
class Later:
    """A version of a distribution that resolves where `pin` does not, and whether none between the two does."""

    pin: str
    name: str
    version: str
    oldest: bool


def later(requirements: Sequence[str], text: str, solve: Solve, early: Early | None = None) -> tuple[Later, ...]:
    """For each pinned requirement that a resolver's explanation names, what resolves instead.

    Nothing is said of a pin where nothing was found, or where the index did not answer.
    """
    found, early = [], early or deadline()
    pins = [item for item in requirements if pinned(item) and conflict.named(conflict.name_of(item), text)]
    for pin in pins[:TRIED]:
        name, others = conflict.name_of(pin), [item for item in requirements if item != pin]
        one = best(name, partial(between, pin, pinned(pin)), others, solve, early)
        if one.version:
            found.append(Later(pin, name, one.version, one.proven))
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
    versions = " or ".join(exactly(one.pin, one.version) for one in found)
    return f"{'; '.join(each)}: ask for {versions} in {origin}"


def pinned(requirement: str) -> str:
    """The one version that a requirement allows; empty if it allows more."""
    from packaging.requirements import Requirement

    specs = list(Requirement(requirement).specifier)
    exact = len(specs) == 1 and specs[0].operator in {"==", "==="} and not specs[0].version.endswith(".*")
    return specs[0].version if exact else ""


def between(requirement: str, above: str = "", below: str = "") -> str:
    """A requirement with its versions replaced by those between two, both left out; "" leaves that end open."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    wish = Requirement(requirement)
    # Neither > nor < takes a local part (PEP 440).
    ends = [operator + end.partition("+")[0] for operator, end in ((">", above), ("<", below)) if end]
    wish.specifier = SpecifierSet(",".join(ends))
    return str(wish)


def exactly(requirement: str, version: str) -> str:
    """A requirement for one version."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    wish = Requirement(requirement)
    wish.specifier = SpecifierSet(f"=={version}")
    return str(wish)


def best(name: str, wish: Callable[[str], str], others: Sequence[str], solve: Solve, early: Early) -> Best:
    """The best version of a distribution that resolves with other requirements; "" if none does, or none is found.

    `wish` makes a requirement that only better versions than the given one meet, or any that will do for "". It is
    asked again until there is no answer: which package uv decides on first would else decide which version we name.
    """
    version = ""
    while early():
        try:
            version = solve([wish(version), *others])[name]
        except conflict.Clash:
            return Best(version, proven=True)
        except Cancelled:
            raise
        except TandemError:
            break
    return Best(version, proven=False)


def deadline(now: Callable[[], float] = time.monotonic) -> Early:
    """Whether there is time for one more look, as a function."""
    until = now() + ALTOGETHER
    return lambda: now() < until
