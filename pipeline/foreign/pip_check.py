"""What is inconsistent among distributions, as `pip check` means it, but judged for another machine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.core import platforms
from pipeline.core.names import normalised_name
from pipeline.foreign.facts import InstalledDistribution

if TYPE_CHECKING:
    from packaging.requirements import Requirement


MAX_REQUIREMENT_CHARS = 4000
"""The length of a requirement that is read; Python converts no number of more than 4300 digits."""


@dataclass(frozen=True)
class ActiveRequirement:
    """A requirement that counts: whose it is ("ray[default] 2.48.0"), and the normalised name of what is wanted."""

    who: str
    name: str
    requirement: "Requirement"

    @property
    def what(self) -> str:
        """The requirement without its marker, as in `ray[cgraph]>=2.48`."""
        extras = f"[{','.join(sorted(self.requirement.extras))}]" if self.requirement.extras else ""
        return f"{self.name}{extras}{_order_specifiers(str(self.requirement.specifier))}"


def find_conflicts(
    distributions: Sequence[InstalledDistribution], *, python: str, platform: str, asked: Iterable[str] = ()
) -> tuple[str, ...]:
    """Every requirement that is missing or met by a wrong version, one line each, sorted.

    `python` is the target's version ("3.12" or "3.12.3"), `platform` Docker's word ("linux/arm64"). A requirement
    behind an extra counts where something in the set, or `asked` (requirements from outside), wants that extra, which
    pip itself does not look at. Of two distributions of one name the first counts. What is not written by PEP 440
    or 508 is compared as text or reported, never an error.
    """
    there = by_name(distributions)
    found = [
        _unreadable(inside, item)
        for inside in there.values()
        for item in inside.requires
        if parse_requirement(item) is None
    ]
    for wish in active_requirements(distributions, python=python, platform=platform, asked=asked):
        found += _conflicts_of(wish, there)
    return tuple(sorted(set(found)))


def active_requirements(
    distributions: Sequence[InstalledDistribution], *, python: str, platform: str, asked: Iterable[str] = ()
) -> Iterator[ActiveRequirement]:
    """Every requirement that counts; parameters as for complaints()."""
    env = marker_environment(python, platforms.machine_of(platform))
    there = by_name(distributions)
    every = {
        name: [wish for item in one.requires if (wish := parse_requirement(item)) is not None]
        for name, one in there.items()
    }
    extras: dict[str, set[str]] = {}
    for item in asked:
        if (given := parse_requirement(item)) is not None and applies(given, "", env):
            extras.setdefault(normalised_name(given.name), set()).update(map(normalised_name, given.extras))
    _spread_extras(extras, every, env)
    for name, inside in there.items():
        for wish in every[name]:
            if (extra := _active_extra(wish, extras.get(name, set()), env)) is not None:
                who = f"{name}[{extra}] {inside.version}" if extra else f"{name} {inside.version}"
                yield ActiveRequirement(who, normalised_name(wish.name), wish)


def by_name(distributions: Iterable[InstalledDistribution]) -> dict[str, InstalledDistribution]:
    """Distributions by name; of two of one name the first counts, as for the interpreter."""
    found: dict[str, InstalledDistribution] = {}
    for inside in distributions:
        found.setdefault(inside.name, inside)
    return found


def new_conflicts(before: Iterable[str], after: Iterable[str]) -> tuple[str, ...]:
    """The complaints that were not there before."""
    known = set(before)
    return tuple(line for line in after if line not in known)


def marker_environment(python: str, machine: str) -> dict[str, str]:
    """What markers are evaluated with: CPython on Linux on this machine ("aarch64")."""
    full = python if python.count(".") > 1 else f"{python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": "linux",
    }


def applies(wish: "Requirement", extra: str, env: Mapping[str, str]) -> bool:
    """Whether a requirement counts on the target, for an extra ("" for none); one whose marker is nonsense does not."""
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName

    try:
        return wish.marker is None or wish.marker.evaluate({**env, "extra": extra})
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False


def allows(wish: "Requirement", version: str) -> bool:
    """Whether a version is one that a requirement allows; local and pre-releases count as they are."""
    from packaging.version import Version

    try:
        return wish.specifier.contains(Version(version), prereleases=True)
    except ValueError:
        # InvalidVersion, or a number of more digits than Python converts.
        return all(_allows_as_text(spec.operator, spec.version, version) for spec in wish.specifier)


def parse_requirement(requirement: str) -> "Requirement | None":
    """A requirement, or None if it is not written as PEP 508 wants it."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(requirement) if len(requirement) <= MAX_REQUIREMENT_CHARS else None
    except (InvalidRequirement, RecursionError):
        return None


def _allows_as_text(operator: str, wanted: str, version: str) -> bool:
    same = wanted == version
    return not same if operator == "!=" else same and operator in {"==", "===", ">=", "<=", "~="}


def _spread_extras(
    extras: dict[str, set[str]], every: Mapping[str, Sequence["Requirement"]], env: Mapping[str, str]
) -> None:
    """Add the extras that requirements ask for, and those that these then ask for, until there are no more."""
    changed = True
    while changed:
        changed = False
        for name, mine in every.items():
            for wish in mine:
                if not wish.extras or _active_extra(wish, extras.get(name, set()), env) is None:
                    continue
                known = extras.setdefault(normalised_name(wish.name), set())
                changed |= not known.issuperset(more := set(map(normalised_name, wish.extras)))
                known |= more


def _active_extra(wish: "Requirement", extras: Iterable[str], env: Mapping[str, str]) -> str | None:
    """The extra that a requirement counts for ("" if it always does), or None if it does not count."""
    return next((extra for extra in ("", *sorted(extras)) if applies(wish, extra, env)), None)


def _conflicts_of(wish: ActiveRequirement, there: Mapping[str, InstalledDistribution]) -> Iterator[str]:
    if wish.name not in there:
        yield f"{wish.who} wants {wish.what}, which is not there"
    elif not allows(wish.requirement, there[wish.name].version):
        yield f"{wish.who} wants {wish.what}, but {wish.name} {there[wish.name].version} is there"


def _order_specifiers(specifiers: str) -> str:
    """Lower bounds first, as people write them: packaging gives specifiers in the order of a set."""
    return ",".join(sorted(filter(None, specifiers.split(",")), key=lambda spec: (spec.startswith("<"), spec)))


def _unreadable(inside: InstalledDistribution, requirement: str) -> str:
    return f"{inside.name} {inside.version} has a requirement that cannot be read: {requirement!r}"
