"""Python packages on top of what is inside an image: only what is missing is added, and nothing inside moves."""

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
from pipeline.lock.conflict import Clash
from pipeline.lock.resolver import Request, Wheel
from pipeline.lock.wheel_tags import Target

NOTHING = "no version of {} fits: use a base whose own packages allow one"
SHOWN = 3  # of those inside who want the same distribution


def target(reading: ImageFacts) -> Target:
    """What wheels have to fit so that the image can use them."""
    return Target(reading.platform.rpartition("/")[2], reading.python.minor, reading.glibc)


def additions(request: Request, reading: ImageFacts, log: Log) -> tuple[Wheel, ...]:
    """The distributions to add so that a request is answered, sorted by name; none of them is inside already.

    What those inside want of a distribution that is not there binds its version, too. Raises ConfigError in words if
    something inside would have to change, naming it, who wants what, and the newest version of an addition that would
    fit; else what resolve.wheels() raises.
    """
    resolver.readable(request.origin, request.requirements, request.constraints)
    inside = pip_check.by_name(reading.distributions)
    _stay(request, inside)
    missing = [wish for wish in _wishes(reading, request) if wish.name not in inside and wish.requirement.specifier]
    with tempfile.TemporaryDirectory(prefix="tandem-inside-") as folder:
        known = stub_index.write(reading.distributions, Path(folder))
        whole = replace(
            request,
            constraints=[*request.constraints, *dict.fromkeys(map(_constraint, missing))],
            pins={name: version for name, version in request.pins.items() if name not in inside},
            first=Path(folder).as_uri(),
            undated=sorted(known),
        )
        found = _solve(whole, known, request, reading, log)
    added = tuple(wheel for wheel in found if wheel.name not in known)
    _consistent(request, reading, added)
    versions = {name: one.version for name, one in inside.items()}
    resolver.warn({**versions, **{wheel.name: wheel.version for wheel in added}}, log)
    return added


def _solve(
    whole: Request, known: Mapping[str, str], request: Request, reading: ImageFacts, log: Log
) -> tuple[Wheel, ...]:
    """The answer to `whole`, with what is inside in its `known` version.

    A folder that the host's settings name (UV_FIND_LINKS) competes even with an index that comes first. Constraints
    keep it out, but make uv say that the additions want these versions: they are given only where they are needed.
    """
    held = replace(whole, constraints=[*whole.constraints, *(f"{name}=={known[name]}" for name in known)])
    try:
        found = resolver.solve(whole, log)
        if any(wheel.version != known.get(wheel.name, wheel.version) for wheel in found):
            found = resolver.solve(held, log)
    except Clash as clash:
        raise _refusal(clash, request, held, reading, log) from clash
    return found


def _wishes(reading: ImageFacts, request: Request) -> list[ActiveRequirement]:
    return list(
        pip_check.active_requirements(
            reading.distributions, python=reading.python.version, platform=reading.platform, asked=request.requirements
        )
    )


def _constraint(wish: ActiveRequirement) -> str:
    return f"{wish.name}{wish.requirement.specifier}"


def _stay(request: Request, inside: Mapping[str, InstalledDistribution]) -> None:
    """Raise ConfigError for a requirement that only another version of something inside would meet."""
    env = pip_check.marker_environment(request.target.python, request.target.machine)
    for item in (*request.requirements, *request.constraints):
        wish = pip_check.parse_requirement(item)
        if wish is None or not pip_check.applies(wish, "", env):
            continue
        there = inside.get(normalised_name(wish.name))
        if there is not None and not pip_check.allows(wish, there.version):
            raise ConfigError(
                f"{request.origin} asks for {item}, but {there.name} is inside the image with version {there.version}",
                hint=f"nothing inside may change: use a base that has it, or drop {item}",
            )


def _consistent(request: Request, reading: ImageFacts, added: Iterable[Wheel]) -> None:
    """Raise ConfigError for what becomes inconsistent by additions; what the base itself is stays its own affair.

    What the additions want is left out: uv has weighed it against all that is inside.
    """
    merged = [*reading.distributions, *(InstalledDistribution(name=w.name, version=w.version, place="") for w in added)]
    told = {"python": reading.python.version, "platform": reading.platform}
    before = (*reading.conflicts, *pip_check.find_conflicts(reading.distributions, **told))
    fresh = pip_check.new_conflicts(before, pip_check.find_conflicts(merged, **told, asked=request.requirements))
    if fresh:
        raise ConfigError(
            "\n".join([f"{request.origin}: with the additions these do not fit any more:", *(f"  {x}" for x in fresh)]),
            hint="constrain the additions, or use a base that has them",
        )


def _refusal(clash: Clash, request: Request, held: Request, reading: ImageFacts, log: Log) -> ConfigError:
    """A clash in words: what is inside and why, who wants what of it, and what would fit."""
    lines = _sides(clash.text, request, held, reading)
    hint = _newest(clash.text, request, held, log)
    if not lines:
        clash.advise(hint)
        return clash
    asks = [f"{request.origin} asks for {item}" for item in _involved(request.requirements, clash.text)]
    head = "this cannot be added, since nothing inside the image may change:"
    return ConfigError(
        "\n".join([head, *(f"  {x}" for x in [*lines, *asks]), "in uv's words:", *conflict.reasons(clash.text)]),
        hint=hint or "use a base that has it, or one whose own packages allow it",
    )


def _sides(text: str, request: Request, held: Request, reading: ImageFacts) -> list[str]:
    wishes = _wishes(reading, request)
    there = pip_check.by_name(reading.distributions)
    lines = []
    for who, what in conflict.wants(text, held.constraints):
        name, wish = conflict.name_of(what), pip_check.parse_requirement(what)
        if name in there and (wish is None or not pip_check.allows(wish, there[name].version)):
            lines += [f"{name} {there[name].version} is inside{_because(name, wishes)}", f"{who} wants {what}"]
    for wish_ in wishes:
        if wish_.name not in there and wish_.requirement.specifier and conflict.named(wish_.name, text):
            lines.append(f"{wish_.owner} is inside and wants {wish_.text}")
            lines += [
                f"{who} wants {w}"
                for who, w in conflict.wants(text, held.constraints)
                if conflict.name_of(w) == wish_.name
            ]
    return list(dict.fromkeys(lines))


def _because(name: str, wishes: Iterable[ActiveRequirement]) -> str:
    """Who inside wants a distribution, those first that set an upper bound, in brackets."""
    asking = [wish for wish in wishes if wish.name == name and wish.requirement.specifier]
    asking.sort(
        key=lambda wish: not any(spec.operator in {"<", "<=", "==", "~="} for spec in wish.requirement.specifier)
    )
    words = [f"{wish.owner} wants {wish.text}" for wish in asking[:SHOWN]]
    if len(asking) > SHOWN:
        words.append(f"{len(asking) - SHOWN} more")
    return f" ({'; '.join(words)})" if words else ""


def _involved(requirements: Sequence[str], text: str) -> list[str]:
    return [item for item in requirements if conflict.named(conflict.name_of(item), text)]


def _newest(text: str, request: Request, held: Request, log: Log) -> str:
    """What to ask for instead, found by resolving with the versions of one requirement left open; empty if unknown."""
    early, words = alternatives.deadline(), []
    for item in _involved(request.requirements, text)[: alternatives.TRIED]:
        name, others = conflict.name_of(item), [other for other in request.requirements if other != item]
        own = [rule for rule in request.constraints if conflict.name_of(rule) == name]
        if not own and (wish := pip_check.parse_requirement(item)) is not None and not wish.specifier:
            words.append(NOTHING.format(name))
            continue
        open_ = replace(
            held, constraints=[rule for rule in held.constraints if rule not in own], within=alternatives.WITHIN
        )
        one = alternatives.best(name, partial(alternatives.between, item), others, resolver.answers(open_, log), early)
        if one.version:
            which = "is the newest that fits" if one.proven else "fits"
            words.append(f"{name} {one.version} {which}: ask for {alternatives.exactly(item, one.version)}")
        elif one.proven:
            words.append(NOTHING.format(name))
    return "; ".join(words)
