"""Explains why uv found no solution: which requirements conflict, who has each, and what to do."""

import re
from collections.abc import Sequence

from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.names import normalised_name

SHOWN_LINES = 8
"""How many lines of uv's own explanation a message has; the log has all of them."""
NETWORK_SIGNS = ("Failed to fetch", "error sending request", "Request failed", "dns error")
REQUIREMENT = re.compile(r"([^\s{}]+)(?:\{[^}]*\})?\s+depends? on ([\w.\-\[\]]+)(?:\{[^}]*\})?([^\s{}]*)")
NO_VERSION = re.compile(r"there (?:is|are) no versions? of ([\w.\-\[\]]+)(?:\{[^}]*\})?([^\s{}]*)")
NO_WHEEL = re.compile(r"(\S+) (has no (?:usable wheels|wheels with a matching [^(,\n]+))")


class VersionConflict(ConfigError):
    """No set of versions meets a request."""

    text = ""
    """uv's own explanation, without warnings."""
    too_young = False
    """Whether the cut-off date leaves out versions that would do."""

    def advise(self, hint: str) -> None:
        """Replaces the hint by a better one, if there is one; a hint about the cut-off date stays beside it."""
        self.hint = "; ".join(filter(None, (self.hint, hint))) if self.too_young else hint or self.hint


def explain_failure(output: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> TandemError:
    """Returns the error for uv's output: a VersionConflict if versions exclude each other.

    `origin` is the file with the requirements and constraints.
    """
    text = _plain(output)
    if "network was disabled" in text:
        return _unreachable("", "uv is told to stay offline, and its cache does not hold what is asked")
    if "No solution found" not in text:
        if any(sign in text for sign in NETWORK_SIGNS):
            where, causes = re.search(r"Failed to fetch: (\S+)", text), re.findall(r"cause: (.+)", text)
            return _unreachable(where[1] if where else "", causes[-1] if causes else text)
        return TandemError("uv could not resolve the request:\n" + text)
    if missing := re.search(r"([\w.\-]+)(?:\[[^\]]*\])? was not found in the package registry", text):
        return _unknown(missing[1], text, origin, requirements, constraints)
    return _clash(text, origin, requirements, constraints)


def name_of(requirement: str) -> str:
    """Returns the normalised name of a requirement; empty if it begins with none."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return normalised_name(match[0].rstrip("-_.")) if match else ""


def _clash(text: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> VersionConflict:
    sides = [f"{who} wants {what}" for who, what in find_requirements(text, constraints)]
    for key, items in (("requirements", requirements), ("constraints", constraints)):
        sides += [f"{origin} asks for {item} (python.{key})" for item in items if mentions(name_of(item), text)]
    lacks = [f"the index has no {_spaced(name + spec.rstrip(','))}" for name, spec in NO_VERSION.findall(text)]
    lacks += [f"{which} {why.strip()}" for which, why in NO_WHEEL.findall(text)]
    hints = re.findall(r"^hint: (.+)$", text, re.MULTILINE)
    lines = ["these cannot all be had:", *(f"  {side}" for side in dict.fromkeys([*sides, *lacks]))]
    too_young = any("exclude-newer" in hint for hint in hints)
    hint = _remedy(hints, too_young, bool(lacks) and len(sides) < 3, origin)
    clash = VersionConflict("\n".join([*lines, "in uv's words:", *first_reasons(text)]), hint=hint)
    clash.text, clash.too_young = text, too_young
    return clash


def find_requirements(text: str, constraints: Sequence[str]) -> list[tuple[str, str]]:
    """Returns who requires what, among packages.

    uv counts our constraints among the requirements of each package: they are left out.
    """
    own_constraints = {re.sub(r"\s+", "", item) for item in constraints}
    requirements: dict[tuple[str, str], str] = {}
    for who, name, spec in REQUIREMENT.findall(text):
        what = name + spec.rstrip(",")
        # An extra that requires its own package explains nothing, nor do more versions with the same requirement.
        if what not in own_constraints and name_of(who) != name_of(name):
            requirements.setdefault((name_of(who), what), _spaced(who))
    return [(who, what) for (_, what), who in requirements.items()]


def _remedy(hints: Sequence[str], too_young: bool, lacking: bool, origin: str) -> str:
    if too_young:
        return f"it is younger than the cut-off date: give python.cutoff in {origin} a later day, or relock"
    if lacking:
        return "; ".join([f"ask in {origin} for a version that the index has for this platform", *hints])
    return f"loosen or drop one of the two sides in {origin}, or take a version of the other that allows it"


def _unknown(name: str, text: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> ConfigError:
    asks = [
        f"{who} wants {what}" for who, what in find_requirements(text, constraints) if name_of(what) == name_of(name)
    ]
    for key, items in (("requirements", requirements), ("constraints", constraints)):
        asks += [f"python.{key} asks for {item}" for item in items if name_of(item) == name_of(name)]
    return ConfigError(
        f"{origin}: {asks[0] if asks else name + ' is wanted'}, but the index has no package {name}",
        hint="check how it is spelled, or let UV_INDEX or uv.toml name the index that has it",
    )


def _unreachable(where: str, why: str) -> TandemError:
    return TandemError(
        f"the package index cannot be reached{f' ({where})' if where else ''}: {why}",
        hint="a lock that answers its request needs none; to resolve, check network, proxy, and the index of uv or pip",
    )


def mentions(name: str, text: str) -> bool:
    """Returns whether a text mentions a distribution."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is not None


def _spaced(requirement: str) -> str:
    """Write name==version as name version."""
    return re.sub(r"^([\w.\-\[\]]+)==", r"\1 ", requirement)


def _plain(output: str) -> str:
    """Return uv's output without warnings, which are about the build machine's own Python."""
    kept, skipping = [], False
    for line in output.splitlines():
        if not line.startswith((" ", "\t")):
            skipping = line.startswith(("warning:", "Resolved ", "Using "))
        if not skipping:
            kept.append(line)
    return "\n".join(kept).strip()


def first_reasons(text: str) -> list[str]:
    """Returns the first lines of uv's explanation, to be printed as they are."""
    body = text.partition("No solution found when resolving dependencies")[2].partition("\nhint:")[0].lstrip(": \n")
    lines = [f"  {line.strip().removeprefix('cause: ')}" for line in body.splitlines() if line.strip()]
    return lines if len(lines) <= SHOWN_LINES else [*lines[:SHOWN_LINES], "  …"]
