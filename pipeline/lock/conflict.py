"""A resolver's refusal in words: the requirements that clash, who asks for each, and what to do."""

import re
from collections.abc import Sequence

from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.names import normalised_name

SHOWN = 8  # lines of uv's own explanation; all of it is in the log
NETWORK = ("Failed to fetch", "error sending request", "Request failed", "dns error")
WANTS = re.compile(r"([^\s{}]+)(?:\{[^}]*\})?\s+depends? on ([\w.\-\[\]]+)(?:\{[^}]*\})?([^\s{}]*)")
NONE = re.compile(r"there (?:is|are) no versions? of ([\w.\-\[\]]+)(?:\{[^}]*\})?([^\s{}]*)")
UNFIT = re.compile(r"(\S+) (has no (?:usable wheels|wheels with a matching [^(,\n]+))")


class Clash(ConfigError):
    """A request that no set of versions answers; `text` is the resolver's own explanation, without its warnings."""

    text = ""
    young = False

    def advise(self, words: str) -> None:
        """Give a better hint, if there is one, besides that about the cut-off date."""
        self.hint = "; ".join(filter(None, (self.hint, words))) if self.young else words or self.hint


def explain(output: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> TandemError:
    """What uv wrote, as the error to raise: a Clash where versions exclude each other.

    `origin` is the file that holds requirements and constraints.
    """
    text = _plain(output)
    if "network was disabled" in text:
        return _unreachable("", "uv is told to stay offline, and its cache does not hold what is asked")
    if "No solution found" not in text:
        if any(sign in text for sign in NETWORK):
            where, causes = re.search(r"Failed to fetch: (\S+)", text), re.findall(r"cause: (.+)", text)
            return _unreachable(where[1] if where else "", causes[-1] if causes else text)
        return TandemError("uv could not resolve the request:\n" + text)
    if missing := re.search(r"([\w.\-]+)(?:\[[^\]]*\])? was not found in the package registry", text):
        return _unknown(missing[1], text, origin, requirements, constraints)
    return _clash(text, origin, requirements, constraints)


def name_of(requirement: str) -> str:
    """The normalised name in front of a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return normalised_name(match[0].rstrip("-_.")) if match else ""


def _clash(text: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> Clash:
    sides = [f"{who} wants {what}" for who, what in wants(text, constraints)]
    for key, given in (("requirements", requirements), ("constraints", constraints)):
        sides += [f"{origin} asks for {item} (python.{key})" for item in given if named(name_of(item), text)]
    lacks = [f"the index has no {_spaced(name + spec.rstrip(','))}" for name, spec in NONE.findall(text)]
    lacks += [f"{which} {why.strip()}" for which, why in UNFIT.findall(text)]
    hints = re.findall(r"^hint: (.+)$", text, re.MULTILINE)
    lines = ["these cannot all be had:", *(f"  {side}" for side in dict.fromkeys([*sides, *lacks]))]
    young = any("exclude-newer" in hint for hint in hints)
    hint = _remedy(hints, young, bool(lacks) and len(sides) < 3, origin)
    clash = Clash("\n".join([*lines, "in uv's words:", *reasons(text)]), hint=hint)
    clash.text, clash.young = text, young
    return clash


def wants(text: str, constraints: Sequence[str]) -> list[tuple[str, str]]:
    """Who wants what, of packages. uv counts our constraints among the wishes of each package: they are left out."""
    ours = {re.sub(r"\s+", "", item) for item in constraints}
    found: dict[tuple[str, str], str] = {}
    for who, name, spec in WANTS.findall(text):
        what = name + spec.rstrip(",")
        # That an extra wants its own package says nothing, nor do more versions that want the same.
        if what not in ours and name_of(who) != name_of(name):
            found.setdefault((name_of(who), what), _spaced(who))
    return [(who, what) for (_, what), who in found.items()]


def _remedy(hints: Sequence[str], young: bool, lacking: bool, origin: str) -> str:
    if young:
        return f"it is younger than the cut-off date: give python.cutoff in {origin} a later day, or relock"
    if lacking:
        return "; ".join([f"ask in {origin} for a version that the index has for this platform", *hints])
    return f"loosen or drop one of the two sides in {origin}, or take a version of the other that allows it"


def _unknown(name: str, text: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> ConfigError:
    asks = [f"{who} wants {what}" for who, what in wants(text, constraints) if name_of(what) == name_of(name)]
    for key, given in (("requirements", requirements), ("constraints", constraints)):
        asks += [f"python.{key} asks for {item}" for item in given if name_of(item) == name_of(name)]
    return ConfigError(
        f"{origin}: {asks[0] if asks else name + ' is wanted'}, but the index has no package {name}",
        hint="check how it is spelled, or let UV_INDEX or uv.toml name the index that has it",
    )


def _unreachable(where: str, why: str) -> TandemError:
    return TandemError(
        f"the package index cannot be reached{f' ({where})' if where else ''}: {why}",
        hint="a lock that answers its request needs none; to resolve, check network, proxy, and the index of uv or pip",
    )


def named(name: str, text: str) -> bool:
    """Whether a text names a distribution."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is not None


def _spaced(what: str) -> str:
    return re.sub(r"^([\w.\-\[\]]+)==", r"\1 ", what)


def _plain(output: str) -> str:
    """uv's output without warnings, which are about the build machine's own Python."""
    kept, skipping = [], False
    for line in output.splitlines():
        if not line.startswith((" ", "\t")):
            skipping = line.startswith(("warning:", "Resolved ", "Using "))
        if not skipping:
            kept.append(line)
    return "\n".join(kept).strip()


def reasons(text: str) -> list[str]:
    """The first lines of uv's explanation, to be shown as they are."""
    body = text.partition("No solution found when resolving dependencies")[2].partition("\nhint:")[0].lstrip(": \n")
    lines = [f"  {line.strip().removeprefix('cause: ')}" for line in body.splitlines() if line.strip()]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], "  …"]
