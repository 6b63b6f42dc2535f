"""Finds what is inconsistent among distributions, as `pip check` does, but judged for another machine."""

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
    """A requirement of an installed distribution that applies to the target."""

    owner: str
    """The distribution that has it, with the extra that it is for and its version: "ray[default] 2.48.0"."""
    name: str
    """The normalised name of the distribution that is required."""
    requirement: "Requirement"

    @property
    def text(self) -> str:
        """The requirement without its marker, such as `ray[cgraph]>=2.48`."""
        extras = f"[{','.join(sorted(self.requirement.extras))}]" if self.requirement.extras else ""
        return f"{self.name}{extras}{_order_specifiers(str(self.requirement.specifier))}"


def find_conflicts(
    distributions: Sequence[InstalledDistribution], *, python: str, platform: str, asked: Iterable[str] = ()
) -> tuple[str, ...]:
    """Returns a line for every requirement that is missing or met by a wrong version, sorted.

    `python` is the target's version ("3.12" or "3.12.3"), `platform` Docker's name for it ("linux/arm64"). A
    requirement for an extra applies if another one, or one of `asked` (requirements from outside), asks for that extra;
    pip itself does not look at extras. Of two distributions of one name the first counts. A version or requirement that
    does not follow PEP 440 or 508 is compared as text or reported; it raises nothing.
    """
    installed = by_name(distributions)
    lines = [
        f"{owner.name} {owner.version} has a requirement that cannot be read: {text!r}"
        for owner in installed.values()
        for text in owner.requires
        if parse_requirement(text) is None
    ]
    for active in active_requirements(distributions, python=python, platform=platform, asked=asked):
        lines += _conflicts_of(active, installed)
    return tuple(sorted(set(lines)))


def active_requirements(
    distributions: Sequence[InstalledDistribution], *, python: str, platform: str, asked: Iterable[str] = ()
) -> Iterator[ActiveRequirement]:
    """Yields every requirement that applies to the target; the parameters are those of find_conflicts()."""
    env = marker_environment(python, platforms.machine_of(platform))
    installed = by_name(distributions)
    requirements = {
        name: [requirement for text in owner.requires if (requirement := parse_requirement(text)) is not None]
        for name, owner in installed.items()
    }
    extras: dict[str, set[str]] = {}
    for text in asked:
        if (requirement := parse_requirement(text)) is not None and applies(requirement, "", env):
            names = extras.setdefault(normalised_name(requirement.name), set())
            names.update(map(normalised_name, requirement.extras))
    _spread_extras(extras, requirements, env)
    for name, owner in installed.items():
        for requirement in requirements[name]:
            if (extra := _active_extra(requirement, extras.get(name, set()), env)) is not None:
                label = f"{name}[{extra}] {owner.version}" if extra else f"{name} {owner.version}"
                yield ActiveRequirement(label, normalised_name(requirement.name), requirement)


def by_name(distributions: Iterable[InstalledDistribution]) -> dict[str, InstalledDistribution]:
    """Returns distributions by name; of two of one name the first counts, as it does for the interpreter."""
    first: dict[str, InstalledDistribution] = {}
    for distribution in distributions:
        first.setdefault(distribution.name, distribution)
    return first


def new_conflicts(before: Iterable[str], after: Iterable[str]) -> tuple[str, ...]:
    """Returns the conflicts of `after` that `before` does not have."""
    earlier = set(before)
    return tuple(line for line in after if line not in earlier)


def marker_environment(python: str, machine: str) -> dict[str, str]:
    """Returns the environment for markers (PEP 508): CPython on Linux, on a machine such as "aarch64"."""
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


def applies(requirement: "Requirement", extra: str, env: Mapping[str, str]) -> bool:
    """Returns whether a requirement applies to the target for an extra ("" for none).

    A requirement with an invalid marker does not apply.
    """
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName

    try:
        return requirement.marker is None or requirement.marker.evaluate({**env, "extra": extra})
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False


def allows(requirement: "Requirement", version: str) -> bool:
    """Returns whether a requirement allows a version. Local versions and pre-releases are allowed like any other."""
    from packaging.version import Version

    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except ValueError:
        # InvalidVersion, or a number of more digits than Python converts.
        return all(_allows_as_text(spec.operator, spec.version, version) for spec in requirement.specifier)


def parse_requirement(text: str) -> "Requirement | None":
    """Returns a requirement; None if it does not follow PEP 508."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text) if len(text) <= MAX_REQUIREMENT_CHARS else None
    except (InvalidRequirement, RecursionError):
        return None


def _allows_as_text(operator: str, bound: str, version: str) -> bool:
    same = bound == version
    return not same if operator == "!=" else same and operator in {"==", "===", ">=", "<=", "~="}


def _spread_extras(
    extras: dict[str, set[str]], requirements: Mapping[str, Sequence["Requirement"]], env: Mapping[str, str]
) -> None:
    """Adds the extras that requirements ask for, and those that these ask for in turn, until there are no more."""
    changed = True
    while changed:
        changed = False
        for owner, own in requirements.items():
            for requirement in own:
                if not requirement.extras or _active_extra(requirement, extras.get(owner, set()), env) is None:
                    continue
                names = extras.setdefault(normalised_name(requirement.name), set())
                asked = set(map(normalised_name, requirement.extras))
                changed |= not names.issuperset(asked)
                names |= asked


def _active_extra(requirement: "Requirement", extras: Iterable[str], env: Mapping[str, str]) -> str | None:
    """Returns the extra that a requirement applies for ("" if it always does); None if it does not apply."""
    return next((extra for extra in ("", *sorted(extras)) if applies(requirement, extra, env)), None)


def _conflicts_of(active: ActiveRequirement, installed: Mapping[str, InstalledDistribution]) -> Iterator[str]:
    if active.name not in installed:
        yield f"{active.owner} wants {active.text}, which is not there"
    elif not allows(active.requirement, installed[active.name].version):
        yield f"{active.owner} wants {active.text}, but {active.name} {installed[active.name].version} is there"


def _order_specifiers(specifiers: str) -> str:
    """Puts lower bounds first, as people write them: packaging gives specifiers in the order of a set."""
    return ",".join(sorted(filter(None, specifiers.split(",")), key=lambda spec: (spec.startswith("<"), spec)))
