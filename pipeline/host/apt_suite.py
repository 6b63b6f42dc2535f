"""Adds a second Debian suite to apt, from the mirror that the machine uses, and pins it low."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import HostError

APT_FOLDER = Path("/etc/apt")
FILE_NAME = "tandem-{suite}"


@dataclass(frozen=True)
class AptFile:
    """A file below /etc/apt."""

    path: Path
    text: str


def suite_files(suite: str, own: str, packages: Sequence[str], apt: Path = APT_FOLDER) -> list[AptFile]:
    """Returns the files that make `packages` of `suite` installable on a Debian whose own suite is `own`.

    With them, apt chooses no other package of `suite`. Returns no files if the machine has another source for `suite`:
    its owner decides what comes from it. Raises HostError if the machine has no source for its own suite.
    """
    name = FILE_NAME.format(suite=suite)
    texts = [path.read_text() for path in _source_files(apt) if path.stem != name]
    if any(suite in words for text in texts for words in _listed_suites(text)):
        return []
    return [source_file(suite, own, apt), AptFile(apt / f"preferences.d/{name}", _preferences(suite, packages))]


def source_file(suite: str, own: str, apt: Path = APT_FOLDER) -> AptFile:
    """Returns a source for `suite`, made from the machine's source for `own`. Raises HostError if it has none."""
    name = FILE_NAME.format(suite=suite)
    for path in _source_files(apt):
        text = path.read_text()
        source = _deb822(text, own, suite) if path.suffix == ".sources" else _one_line(text, own, suite)
        if source:
            return AptFile(apt / f"sources.list.d/{name}{path.suffix}", source)
    raise HostError(f"apt has no source for Debian {own} here", hint=f"give {apt}/sources.list one")


def _source_files(apt: Path) -> Iterable[Path]:
    candidates = [
        *sorted(apt.glob("sources.list.d/*.sources")),
        apt / "sources.list",
        *sorted(apt.glob("sources.list.d/*.list")),
    ]
    return (path for path in candidates if path.is_file())


def _listed_suites(text: str) -> Iterable[list[str]]:
    """Yields the suites of each source in a file of either format."""
    for line in text.splitlines():
        words = re.sub(r"\[.*?\]", "", line).split()
        if words[:1] == ["deb"]:
            yield words[2:3]
        elif line.lower().startswith("suites:"):
            yield words[1:]


def _one_line(text: str, own: str, suite: str) -> str:
    """Returns a source for `suite` in the one-line format of sources.list(5); "" if the text has none for `own`."""
    for line in text.splitlines():
        match = re.match(rf"\s*deb\s+(\[[^]]*\]\s+)?(\S+)\s+{re.escape(own)}\s+.*\bmain\b", line)
        if match:
            return f"deb {match[1] or ''}{match[2]} {suite} main\n"
    return ""


def _deb822(text: str, own: str, suite: str) -> str:
    """Returns a source for `suite` in the deb822 format of sources.list(5), or "". All other fields stay."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = _stanza_fields(stanza)
        if (
            "deb" in fields.get("types", "").split()
            and own in fields.get("suites", "").split()
            and fields.get("enabled", "yes") != "no"
        ):
            fields |= {"types": "deb", "suites": suite, "components": "main"}
            return "".join(f"{key.title()}: {value}\n" for key, value in fields.items())
    return ""


def _stanza_fields(stanza: str) -> dict[str, str]:
    """Returns a stanza's fields by names in lower case; continuation lines are part of the value."""
    fields: dict[str, str] = {}
    last = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[last] += "\n" + line
        elif ":" in line:
            last, _, value = line.partition(":")
            last = last.strip().lower()
            fields[last] = value.strip()
    return fields


def _preferences(suite: str, packages: Sequence[str]) -> str:
    """Returns apt_preferences(5). At 50 apt takes nothing by itself; at 500 a package competes with the own suite."""
    return (
        f"Package: *\nPin: release n={suite}\nPin-Priority: 50\n\n"
        f"Package: {' '.join(packages)}\nPin: release n={suite}\nPin-Priority: 500\n"
    )
