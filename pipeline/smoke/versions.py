"""Check `versions`: the image has exactly the distributions of its lock, its aliases and its own, in their versions."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.config.models import Alias
from pipeline.core.names import normalised_name
from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.probe import Answers, judge_answer
from pipeline.smoke.verdict import Verdict

NAME = "versions"
VERSIONS = "versions"
"""The probe's question for every distribution: rows of name, version and folder, in the order of Python's path."""
Copies = Mapping[str, Sequence[tuple[str, str]]]
"""The version and folder of each copy of a distribution, by normalised name, in the order of Python's path."""


def judge(expected: Expectations, answers: Answers) -> Verdict:
    """Compares what is installed with what the image has to hold."""
    return judge_answer(NAME, VERSIONS, answers, lambda rows: _compare(rows, expected))


CHECK = Check(name=NAME, judge=judge, questions=lambda _image: (VERSIONS,))


def installed_version(answers: Answers, name: str) -> str:
    """Returns the version of a distribution (normalised name) by the answer to VERSIONS; empty if it is unknown."""
    rows = answers[VERSIONS].value if VERSIONS in answers else None
    return next((version for other, version, _ in rows or () if normalised_name(other) == name), "")


def _compare(rows: Sequence[tuple[str, str, str]], expected: Expectations) -> tuple[list[str], str]:
    installed: dict[str, list[tuple[str, str]]] = {}
    for name, version, folder in rows:
        installed.setdefault(normalised_name(name), []).append((version, folder))
    aliases = {normalised_name(alias.name): alias for alias in expected.image.aliases}
    declared = {
        **{name: (version, "the lock") for name, version in expected.locked.items()},
        **{name: (alias.version, "image.yaml") for name, alias in aliases.items()},
        **{name: (version, "its pyproject.toml") for name, version in expected.own.items()},
    }
    faults = [*_missing(expected, installed, aliases), *_different(installed, declared, expected.inherited)]
    inherited = f"{len(expected.inherited)} inside as they were, " if expected.inherited else ""
    added = len(expected.locked) - len(expected.inherited)
    return faults, f"{inherited}{added} locked, {len(aliases)} aliases, {len(expected.own)} own; nothing else"


def _missing(expected: Expectations, installed: Copies, aliases: Mapping[str, Alias]) -> Iterator[str]:
    for name in sorted({*expected.locked, *expected.own, *aliases} - installed.keys()):
        if alias := aliases.get(name):
            yield f"the alias {name} {alias.version} (of {alias.of}) is declared, but not in the image"
        elif name in expected.own:
            yield f"our distribution {name} {expected.own[name]} is declared, but not in the image"
        else:
            yield f"{name} {expected.locked[name]} is in the lock, but not in the image: build it again"


def _different(installed: Copies, declared: Mapping[str, tuple[str, str]], inherited: frozenset[str]) -> Iterator[str]:
    """Yields a fault for each distribution that is there twice, in another version, or not declared at all."""
    for name, copies in sorted(installed.items()):
        version, folder = copies[0]
        # A base image may bring a distribution twice; Python takes the first.
        if len(copies) > 1 and name not in inherited:
            places = " and ".join(f"{version} in {folder}" for version, folder in copies)
            yield f"{name} is installed {len(copies)} times: {places}"
        elif name not in declared:
            yield (
                f"{name} {version} is in {folder}, but not in the lock: require it in image.yaml,"
                " or find what brought it in"
            )
        elif not _same_version(version, declared[name][0]):
            wanted, source = declared[name]
            yield f"{name} is {version}, but {source} says {wanted}: build it again"


def _same_version(left: str, right: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(left) == Version(right)
    except InvalidVersion:
        return left == right
