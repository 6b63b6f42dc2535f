"""A package index on disk that stands for what is inside an image: the only version of each, and its extras' wishes.

Measured with uv 0.13.9. A folder by PEP 503 (`<name>/index.html`) that UV_INDEX names before all other indexes is the
only one that uv asks for the names that it has (its first-index strategy), so that the version inside is the only one
that exists, be it a local (2.9.0+cu130) or a pre-release one (0.17.1rc1.dev25+g123), which uv takes without being told
to since there is no other. With --find-links instead, versions of the index compete: the one in the folder
is not even preferred. Files on such an index have no date of upload, and --exclude-newer hides them all unless
--exclude-newer-package NAME=false is given for each name (a far date instead of `false` does not do).
"""

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from pipeline.foreign import pip_check
from pipeline.foreign.facts import InstalledDistribution

NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
UNREADABLE = "0"  # stands for a version that is none by PEP 440


def write(distributions: Iterable[InstalledDistribution], into: Path) -> dict[str, str]:
    """Write an index of wheels that hold metadata and nothing else; returns the version of each name as uv sees it.

    The wheels carry the requirements that stand behind an extra, and no others: what is inside is as it is, and its own
    inconsistencies must not stand in the way of an addition. Of two distributions of one name the first counts.
    """
    found: dict[str, str] = {}
    for inside in pip_check.by_name(distributions).values():
        if not NAME.fullmatch(inside.name):
            continue  # a name like ~orch is what an interrupted pip leaves behind
        found[inside.name] = version = as_written(inside.version)
        folder = into / inside.name
        folder.mkdir(parents=True)
        file = f"{inside.name.replace('-', '_')}-{version}-py3-none-any.whl"
        _wheel(folder / file, inside, version)
        (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{quote(file)}">{file}</a>', encoding="utf-8")
    return found


def as_written(version: str) -> str:
    """A version as PEP 440 normalises it; UNREADABLE if it is none."""
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(version))
    except InvalidVersion:
        return UNREADABLE


def optional(inside: InstalledDistribution) -> list[str]:
    """The requirements of a distribution that count for an extra only, as they are written."""
    wishes = [(item, pip_check.parse_requirement(item)) for item in inside.requires]
    return [item for item, wish in wishes if wish is not None and "extra" in str(wish.marker or "")]


def _wheel(path: Path, inside: InstalledDistribution, version: str) -> None:
    lines = ["Metadata-Version: 2.1", f"Name: {inside.name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in inside.extras]
    lines += [f"Requires-Dist: {item}" for item in optional(inside)]
    info = f"{inside.name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
