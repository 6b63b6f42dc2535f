"""Judges what the Python probe says: `versions`, `imports`, `registry`, `config`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.checks.answers import ATTEMPTS, Answer
from pipeline.checks.boxes import INSIDE
from pipeline.checks.verdict import Verdict, crash_verdict, judge
from pipeline.models import Alias, Image

CONFIG = f"{INSIDE}/config"
VERSIONS = "versions"


def names(image: Image) -> list[str]:
    """The checks of this module that image.yaml asks for."""
    smoke = image.smoke
    asked = {VERSIONS: True, "imports": smoke.imports, "registry": smoke.architectures, "config": smoke.config}
    return [name for name, wanted in asked.items() if wanted]


def questions(image: Image) -> list[str]:
    """What the probe is asked for these checks, quick ones first."""
    smoke = image.smoke
    return [
        VERSIONS,
        *(f"import:{module}" for module in smoke.imports),
        *(f"registry:{architecture}" for architecture in smoke.architectures),
        *([f"config:{CONFIG}"] if smoke.config else []),
    ]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an image shall hold: its image.yaml, every distribution (normalised name → version), and the names of those
    that the image below brought.
    """

    image: Image
    locked: Mapping[str, str]
    inside: frozenset[str] = frozenset()


def verdicts(wanted: Wanted, answers: Mapping[str, Answer]) -> list[Verdict]:
    """The verdicts of the checks that image.yaml asks for."""
    smoke = wanted.image.smoke
    found = [_one(VERSIONS, VERSIONS, answers, lambda value: _versions(value, wanted))]
    if smoke.imports:
        found.append(_imports(smoke.imports, answers))
    if smoke.architectures:
        found.append(_registry(smoke.architectures, answers))
    if smoke.config:
        architectures = smoke.architectures
        found.append(_one("config", f"config:{CONFIG}", answers, lambda value: _config(value, architectures)))
    return found


def _one(
    check: str, question: str, answers: Mapping[str, Answer], look: Callable[[Any], tuple[list[str], str]]
) -> Verdict:
    """The verdict of a check that is one question; `look` makes faults and findings of its value."""
    answer = answers[question]
    if answer.crashed:
        return crash_verdict(check, question, ATTEMPTS)
    if answer.error:
        return judge(check, [answer.error], "")
    faults, found = look(answer.value)
    return judge(check, faults, found)


def crashed(check: str, answers: Mapping[str, Answer], asked: Iterable[str]) -> Verdict | None:
    """The emulator's verdict if it crashed at a question of the check and no other question shows a fault."""
    at = [question for question in asked if answers[question].crashed]
    failed = [question for question in asked if answers[question].error and not answers[question].crashed]
    return crash_verdict(check, ", ".join(at), ATTEMPTS) if at and not failed else None


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))


def _versions(installed: Sequence[tuple[str, str, str]], asked: Wanted) -> tuple[list[str], str]:
    image = asked.image
    places: dict[str, list[tuple[str, str]]] = {}
    for name, version, folder in installed:
        places.setdefault(normalised(name), []).append((version, folder))
    aliases = {normalised(alias.name): alias for alias in image.aliases}
    own = {normalised(name) for name in image.distributions}
    wanted = {**asked.locked, **{name: alias.version for name, alias in aliases.items()}}
    faults = [*_absent(wanted, own, places, aliases)]
    for name, found in sorted(places.items()):
        # The image below may have had it twice; Python takes the first.
        if len(found) > 1 and name not in asked.inside:
            where = " and ".join(f"{version} in {folder}" for version, folder in found)
            faults.append(f"{name} is there {len(found)} times: {where}")
        elif name in wanted and not _same(found[0][0], wanted[name]):
            faults.append(f"{name} is {found[0][0]}, but the lock says {wanted[name]}")
        elif name not in wanted and name not in own:
            faults.append(
                f"{name} {found[0][0]} is in {found[0][1]}, but not in the lock: require it in image.yaml,"
                " or find what brought it in"
            )
    inside = f"{len(asked.inside)} inside as they were, " if asked.inside else ""
    added = len(asked.locked) - len(asked.inside)
    return faults, f"{inside}{added} locked, {len(aliases)} aliases, {len(own)} own; nothing else"


def _absent(
    wanted: Mapping[str, str], own: Iterable[str], places: Mapping[str, Any], aliases: Mapping[str, Alias]
) -> Iterable[str]:
    for name in sorted({*wanted, *own} - places.keys()):
        if name in aliases:
            yield f"the alias {name} {wanted[name]} (of {aliases[name].of}) is declared, but not in the image"
        elif name in wanted:
            yield f"{name} {wanted[name]} is in the lock, but not in the image: build it again"
        else:
            yield f"our distribution {name} is declared, but not in the image"


def _same(one: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _imports(modules: Sequence[str], answers: Mapping[str, Answer]) -> Verdict:
    asked = {f"import:{module}": module for module in modules}
    if verdict := crashed("imports", answers, asked):
        return verdict
    faults = [f"import {module}: {answers[key].error}" for key, module in asked.items() if answers[key].error]
    if faults:
        return judge("imports", faults, "")
    return judge("imports", [], ", ".join(f"{m} {answers[k].value['version']}".strip() for k, m in asked.items()))


def _registry(architectures: Sequence[str], answers: Mapping[str, Answer]) -> Verdict:
    asked = {f"registry:{architecture}": architecture for architecture in architectures}
    if verdict := crashed("registry", answers, asked):
        return verdict
    faults = [_unusable(name, answers[key]) for key, name in asked.items()]
    return judge("registry", [fault for fault in faults if fault], f"listed and loaded: {', '.join(architectures)}")


def _unusable(architecture: str, answer: Answer) -> str:
    """Why vLLM cannot use an architecture; empty if it can."""
    if answer.error:
        return f"{architecture}: vLLM's registry cannot be asked: {answer.error}"
    said = answer.value
    if "fails" in said:
        return f"{architecture} is listed by vLLM's registry, but its class does not load: {said['fails']}"
    if said["listed"]:
        return ""
    looks = f"vLLM looks it up in {said['looks_in']}, a dictionary from architecture names to modules ({said['known']})"
    if said["files"]:
        return (
            f"{architecture} is not registered, although {', '.join(said['files'])} defines it: {looks}, and a"
            " file that nobody registered there is not a model; use a vLLM that lists it"
        )
    return f"{architecture} is not registered, and no file of vLLM defines it: {looks}; use a vLLM that lists it"


def _config(said: Mapping[str, Any], architectures: Sequence[str]) -> tuple[list[str], str]:
    faults = [
        f"vLLM reads {key} as {got}, but the model's config.json says {want}" for key, want, got in said["differs"]
    ]
    if not set(said["architectures"]) & set(architectures) and architectures:
        faults.append(
            f"the model's config.json names {', '.join(said['architectures']) or 'no architecture'},"
            " none of those that image.yaml wants in the registry"
        )
    return faults, f"read by {said['class']} for {', '.join(said['architectures'])}"
