"""A package index on disk that stands for the distributions of an image: one version of each.

Measured with uv 0.13.9. UV_INDEX names a folder by PEP 503 (`<name>/index.html`) before all other indexes. uv then
looks up the names in it nowhere else (its first-index strategy). The version in the image is the only one that exists,
be it a local one (2.9.0+cu130) or a pre-release (0.17.1rc1.dev25+g123), which uv takes since there is no other. With
--find-links instead, versions of the index compete: the one in the folder is not even preferred. Files in such an index
have no upload date, and --exclude-newer hides them all unless --exclude-newer-package NAME=false is given for each name
(a far date instead of `false` does not work).
"""

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from pipeline.foreign import pip_check
from pipeline.foreign.facts import InstalledDistribution

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
UNREADABLE_VERSION = "0"
"""Stands for a version that PEP 440 does not allow."""


def write_index(distributions: Iterable[InstalledDistribution], into: Path) -> dict[str, str]:
    """Writes an index of wheels that contain only metadata; returns the version of each name as uv sees it.

    The wheels have the requirements of extras, and no others: the image's own conflicts must not prevent an addition.
    Of two distributions with the same name, the first counts.
    """
    versions: dict[str, str] = {}
    for distribution in pip_check.by_name(distributions).values():
        if not NAME_PATTERN.fullmatch(distribution.name):
            continue  # a name like ~orch is what an interrupted pip leaves behind
        versions[distribution.name] = version = normalised_version(distribution.version)
        folder = into / distribution.name
        folder.mkdir(parents=True)
        file = f"{distribution.name.replace('-', '_')}-{version}-py3-none-any.whl"
        _write_wheel(folder / file, distribution, version)
        (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{quote(file)}">{file}</a>', encoding="utf-8")
    return versions


def normalised_version(version: str) -> str:
    """Returns a version as PEP 440 normalises it; UNREADABLE_VERSION if it does not allow it."""
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(version))
    except InvalidVersion:
        return UNREADABLE_VERSION


def optional_requirements(distribution: InstalledDistribution) -> list[str]:
    """Returns the requirements of a distribution that apply only to an extra, as they are written."""
    parsed = [(item, pip_check.parse_requirement(item)) for item in distribution.requires]
    return [
        item for item, requirement in parsed if requirement is not None and "extra" in str(requirement.marker or "")
    ]


def _write_wheel(path: Path, distribution: InstalledDistribution, version: str) -> None:
    lines = ["Metadata-Version: 2.1", f"Name: {distribution.name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in distribution.extras]
    lines += [f"Requires-Dist: {item}" for item in optional_requirements(distribution)]
    info = f"{distribution.name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
