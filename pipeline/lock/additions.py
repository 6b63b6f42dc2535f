"""Resolves Python packages on top of a base image: only missing ones are added, and the base's own never change."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.core.names import normalised_name
from pipeline.foreign import pip_check
from pipeline.foreign.facts import ImageFacts, InstalledDistribution
from pipeline.foreign.pip_check import ActiveRequirement
from pipeline.lock import alternatives, conflict, resolver, stub_index
from pipeline.lock.conflict import VersionConflict
from pipeline.lock.resolver import Wheel, WheelRequest
from pipeline.lock.wheel_tags import WheelTarget

NO_VERSION_FITS = "no version of {} fits: use a base whose own packages allow one"
MOST_NAMED = 3
"""How many distributions of the base that require the same one are named."""


def wheel_target(facts: ImageFacts) -> WheelTarget:
    """Returns what wheels must fit so that the image can use them."""
    return WheelTarget(facts.platform.rpartition("/")[2], facts.python.minor, facts.glibc)


def resolve_additions(facts: ImageFacts, request: WheelRequest, log: Log) -> tuple[Wheel, ...]:
    """Returns the distributions to add so that a request is met, sorted by name; the base has none of them.

    Requirements of the base's own distributions bind the versions of additions, too. Raises ConfigError if a
    distribution of the base would have to change: it names that one, who requires what, and the newest version of an
    addition that would fit. Raises also what resolver.solve_request() raises.
    """
    resolver.refuse_unreadable(request.origin, request.requirements, request.constraints)
    base = pip_check.by_name(facts.distributions)
    _refuse_other_versions(request, base)
    missing = [item for item in _requirements(facts, request) if item.name not in base and item.requirement.specifier]
    with tempfile.TemporaryDirectory(prefix="tandem-inside-") as folder:
        stubs = stub_index.write_index(facts.distributions, Path(folder))
        whole = replace(
            request,
            constraints=[*request.constraints, *dict.fromkeys(f"{x.name}{x.requirement.specifier}" for x in missing)],
            pins={name: version for name, version in request.pins.items() if name not in base},
            first=Path(folder).as_uri(),
            undated=sorted(stubs),
        )
        wheels = _solve(whole, stubs, request, facts, log)
    added = tuple(wheel for wheel in wheels if wheel.name not in stubs)
    _refuse_inconsistent(request, facts, added)
    versions = {name: distribution.version for name, distribution in base.items()}
    resolver.warn_known_bad({**versions, **{wheel.name: wheel.version for wheel in added}}, log)
    return added


def _solve(
    whole: WheelRequest, stubs: Mapping[str, str], request: WheelRequest, facts: ImageFacts, log: Log
) -> tuple[Wheel, ...]:
    """Return the solution of `whole`, in which the base's distributions have their versions, as in `stubs`.

    A folder that the host's settings name (UV_FIND_LINKS) competes even with an index that comes first. Constraints
    keep it out, but make uv say that the additions require these versions: they are given only if needed.
    """
    held = replace(whole, constraints=[*whole.constraints, *(f"{name}=={stubs[name]}" for name in stubs)])
    try:
        wheels = resolver.solve_request(whole, log)
        if any(wheel.version != stubs.get(wheel.name, wheel.version) for wheel in wheels):
            wheels = resolver.solve_request(held, log)
    except VersionConflict as clash:
        raise _refusal(clash, request, held, facts, log) from clash
    return wheels


def _requirements(facts: ImageFacts, request: WheelRequest) -> list[ActiveRequirement]:
    return list(
        pip_check.active_requirements(
            facts.distributions, python=facts.python.version, platform=facts.platform, asked=request.requirements
        )
    )


def _refuse_other_versions(request: WheelRequest, base: Mapping[str, InstalledDistribution]) -> None:
    """Raise ConfigError for a requirement that only another version of a distribution of the base would meet."""
    env = pip_check.marker_environment(request.target.python, request.target.machine)
    for item in (*request.requirements, *request.constraints):
        requirement = pip_check.parse_requirement(item)
        if requirement is None or not pip_check.applies(requirement, "", env):
            continue
        installed = base.get(normalised_name(requirement.name))
        if installed is not None and not pip_check.allows(requirement, installed.version):
            raise ConfigError(
                f"{request.origin} asks for {item},"
                f" but {installed.name} is inside the image with version {installed.version}",
                hint=f"nothing inside may change: use a base that has it, or drop {item}",
            )


def _refuse_inconsistent(request: WheelRequest, facts: ImageFacts, added: Iterable[Wheel]) -> None:
    """Raise ConfigError for conflicts that the additions cause; those of the base itself are not our concern.

    Requirements of the additions are left out: uv has weighed them against everything in the base.
    """
    merged = [*facts.distributions, *(InstalledDistribution(name=w.name, version=w.version, place="") for w in added)]
    where = {"python": facts.python.version, "platform": facts.platform}
    before = (*facts.conflicts, *pip_check.find_conflicts(facts.distributions, **where))
    caused = pip_check.new_conflicts(before, pip_check.find_conflicts(merged, **where, asked=request.requirements))
    if caused:
        raise ConfigError(
            "\n".join(
                [f"{request.origin}: with the additions these do not fit any more:", *(f"  {x}" for x in caused)]
            ),
            hint="constrain the additions, or use a base that has them",
        )


def _refusal(
    clash: VersionConflict, request: WheelRequest, held: WheelRequest, facts: ImageFacts, log: Log
) -> ConfigError:
    """Return a conflict in words: the base's distributions, who requires what of them, and what would fit."""
    sides = _describe_sides(clash.text, held, _requirements(facts, request), facts)
    hint = _newest_that_fits(clash.text, request, held, log)
    if not sides:
        clash.advise(hint)
        return clash
    asks = [f"{request.origin} asks for {item}" for item in _mentioned(request.requirements, clash.text)]
    head = "this cannot be added, since nothing inside the image may change:"
    return ConfigError(
        "\n".join([head, *(f"  {x}" for x in [*sides, *asks]), "in uv's words:", *conflict.first_reasons(clash.text)]),
        hint=hint or "use a base that has it, or one whose own packages allow it",
    )


def _describe_sides(
    text: str, held: WheelRequest, requirements: Sequence[ActiveRequirement], facts: ImageFacts
) -> list[str]:
    base = pip_check.by_name(facts.distributions)
    wanted = conflict.find_requirements(text, held.constraints)
    lines = []
    for who, what in wanted:
        name, requirement = conflict.name_of(what), pip_check.parse_requirement(what)
        if name in base and (requirement is None or not pip_check.allows(requirement, base[name].version)):
            reason = _required_by(name, requirements)
            lines += [f"{name} {base[name].version} is inside{reason}", f"{who} wants {what}"]
    for item in requirements:
        if item.name not in base and item.requirement.specifier and conflict.mentions(item.name, text):
            lines.append(f"{item.owner} is inside and wants {item.text}")
            lines += [f"{who} wants {what}" for who, what in wanted if conflict.name_of(what) == item.name]
    return list(dict.fromkeys(lines))


def _required_by(name: str, requirements: Iterable[ActiveRequirement]) -> str:
    """Return, in brackets, who in the base requires a distribution; those first that set an upper bound."""
    bounded = {"<", "<=", "==", "~="}
    asking = [item for item in requirements if item.name == name and item.requirement.specifier]
    asking.sort(key=lambda item: not any(spec.operator in bounded for spec in item.requirement.specifier))
    words = [f"{item.owner} wants {item.text}" for item in asking[:MOST_NAMED]]
    if len(asking) > MOST_NAMED:
        words.append(f"{len(asking) - MOST_NAMED} more")
    return f" ({'; '.join(words)})" if words else ""


def _mentioned(requirements: Sequence[str], text: str) -> list[str]:
    return [item for item in requirements if conflict.mentions(conflict.name_of(item), text)]


def _newest_that_fits(text: str, request: WheelRequest, held: WheelRequest, log: Log) -> str:
    """Return what to ask for instead, found by resolving with one requirement's versions left open; else ""."""
    time_left, words = alternatives.search_deadline(), []
    for item in _mentioned(request.requirements, text)[: alternatives.MOST_SEARCHED]:
        name, others = conflict.name_of(item), [other for other in request.requirements if other != item]
        own = [rule for rule in request.constraints if conflict.name_of(rule) == name]
        requirement = pip_check.parse_requirement(item)
        if not own and requirement is not None and not requirement.specifier:
            words.append(NO_VERSION_FITS.format(name))
            continue
        rest = [rule for rule in held.constraints if rule not in own]
        solve = resolver.solver(replace(held, constraints=rest, within=alternatives.SEARCH_TIMEOUT_S), log)
        versions = partial(alternatives.with_versions_between, item)
        best = alternatives.best_version(name, versions, others, solve, time_left)
        if best.version:
            which = "is the newest that fits" if best.proven else "fits"
            words.append(f"{name} {best.version} {which}: ask for {alternatives.with_version(item, best.version)}")
        elif best.proven:
            words.append(NO_VERSION_FITS.format(name))
    return "; ".join(words)
