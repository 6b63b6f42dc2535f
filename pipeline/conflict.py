"""A resolver's refusal in words: the requirements that clash, who asks for each, and what to do."""

import re
from collections.abc import Sequence

from pipeline.errors import ConfigError, TandemError

NETWORK = ("Failed to fetch", "error sending request", "Request failed", "network was disabled", "dns error")
WANTS = re.compile(r"([^\s{}]+) depends on ([\w.\-\[\],]+)(\{[^}]*\})?([^\s{}]*)")
OFFER = re.compile(
    r"(?:there (?:is|are) no versions? of|no versions of) ([\w.\-\[\],]+)(?:\{[^}]*\})?([^\s,{}]*(?:,[<>=!~][^\s,]*)*)"
)


def explain(output: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> TandemError:
    """What uv wrote, as the error to raise. `origin` is the file that holds requirements and constraints."""
    text = _plain(output)
    if unreadable := re.search(r"Couldn't parse requirement in `(\w+)\.in`.*?\n\s*cause: (.+?)\n\s*(\S.*)", text):
        key, why, what = unreadable.groups()
        return ConfigError(f"{origin}: python.{key}: {what.strip()!r} cannot be read: {why}")
    if "No solution found" not in text and any(sign in text for sign in NETWORK):
        return _unreachable(text)
    if "network was disabled" in text:
        return _unreachable(text)
    if missing := re.findall(r"([\w.\-\[\]]+) was not found in the package registry", text):
        names = ", ".join(dict.fromkeys(missing))
        return ConfigError(
            f"{origin}: {_asks(missing[0], requirements, constraints)}, but the index has no package {names}"
        )
    if "No solution found" not in text:
        return TandemError("uv could not resolve the request:\n" + text)
    return _clash(text, origin, requirements, constraints)


def _clash(text: str, origin: str, requirements: Sequence[str], constraints: Sequence[str]) -> ConfigError:
    wants = dict.fromkeys((_spaced(who), name + (spec or "")) for who, name, _, spec in WANTS.findall(text))
    # "ray[default] depends on ray==2.60.0" says nothing: an extra is part of its package.
    sides = [f"{who} wants {what}" for who, what in wants if name_of(who.split(" ")[0]) != name_of(what)]
    for key, given in (("requirements", requirements), ("constraints", constraints)):
        sides += [f"{origin} asks for {item} (python.{key})" for item in given if _named(name_of(item), text)]
    none = [_spaced(name + spec) for name, spec in OFFER.findall(text)]
    lacks = [f"the index has no {what.strip()}" for what in dict.fromkeys(none)]
    lacks += [
        f"{m[0]} {m[1]}" for m in re.findall(r"(\S+) (has no (?:usable wheels|wheels with a matching [^(,\n]+))", text)
    ]
    hints = re.findall(r"^hint: (.+)$", text, re.MULTILINE)
    message = "\n".join(["these cannot all be had:", *(f"  {side}" for side in dict.fromkeys([*sides, *lacks]))])
    return ConfigError(f"{message}\nin uv's words:\n{_reasons(text)}", hint=_remedy(hints, sides, lacks, origin))


def _remedy(hints: Sequence[str], sides: Sequence[str], lacks: Sequence[str], origin: str) -> str:
    if any("exclude-newer" in hint for hint in hints):
        return f"it is younger than the cut-off date: set python.cutoff in {origin} to a later day, or relock"
    if lacks and len(sides) < 3:
        return f"ask for a version that the index has for this platform, in {origin}; " + "; ".join(hints)
    return f"loosen or drop one of the two sides in {origin}, or take a version of the other that allows it"


def _asks(name: str, requirements: Sequence[str], constraints: Sequence[str]) -> str:
    for key, given in (("requirements", requirements), ("constraints", constraints)):
        for item in given:
            if name_of(item) == name_of(name):
                return f"python.{key} asks for {item}"
    return f"{name} is wanted"


def _unreachable(text: str) -> TandemError:
    where = re.search(r"Failed to fetch: ([^\s]+)", text)
    causes = re.findall(r"cause: (.+)", text)
    last = causes[-1] if causes else text.splitlines()[0] if text else "no answer"
    return TandemError(
        f"the package index cannot be reached{f' ({where[1]})' if where else ''}: {last}",
        hint="a lock that answers its request needs none; to resolve, check network, proxy, and the index of uv or pip",
    )


def name_of(requirement: str) -> str:
    """The normalised name in front of a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0].rstrip("-_.")).lower() if match else ""


def _named(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is not None


def _spaced(what: str) -> str:
    return re.sub(r"^([\w.\-\[\]]+)==", r"\1 ", what)


def _plain(output: str) -> str:
    """uv's output without warnings, which are about the build machine's own Python."""
    kept, skipping = [], False
    for line in output.splitlines():
        if line.startswith(("warning:", "Resolved ", "Using ")):
            skipping = True
        elif not line.startswith((" ", "\t")):
            skipping = False
        if not skipping:
            kept.append(line)
    return "\n".join(kept).strip()


def _reasons(text: str) -> str:
    body = text.partition("No solution found when resolving dependencies")[2].partition("\nhint:")[0].lstrip(": \n")
    lines = [line.strip().removeprefix("cause: ") for line in body.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines)
