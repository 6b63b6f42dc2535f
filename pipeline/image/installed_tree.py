"""A tree of installed wheels made fit for the image: what depends on the build machine is taken out or set right.

`uv pip install --target` leaves scripts that name the build machine's Python, and RECORD lines that vouch for them. It
puts scripts and shared data below the target, where the image has them below /usr/local.
"""

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import platforms
from pipeline.core.errors import TandemError
from pipeline.core.names import normalised_name
from pipeline.lock.place import Place

INSTALLER = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")

# Of a script that uv writes for a path to Python that is long or has odd letters: lines that are both shell and
# Python. However that path is spelled there, it is this machine's.
_SHELL = re.compile(rb"\A#!/bin/sh\n'''exec' .*?\n' '''\n", re.DOTALL)
_PYTHON = re.compile(rb"\A#![^\n]*python[^\n]*\n")
UNNAMEABLE = "can this system spell the name? ./doitw runs in UTF-8 whatever the locale is"


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: its normalised name, and its files (path in the tree → path in the image)."""

    name: str
    files: Mapping[str, str]


def normalise(tree: Path, place: Place, wheels: Mapping[str, Path]) -> tuple[Distribution, ...]:
    """Set scripts and RECORDs of an installed tree right; returns its distributions, sorted by name.

    `wheels` maps normalised names to wheel files. Where two bring one file with different content, the first by name
    has it, whichever was installed last. Raises TandemError if a distribution has no RECORD.
    """
    records = {_name(folder): folder / "RECORD" for folder in sorted(tree.glob("*.dist-info"))}
    lacking = sorted(wheels.keys() - records.keys()) + [n for n, record in records.items() if not record.is_file()]
    if lacking:
        raise TandemError(f"not installed as it should be: {', '.join(lacking)}")
    for name in INSTALLER:
        for path in tree.glob(f"*.dist-info/{name}"):
            path.unlink()
    owners: dict[str, tuple[str, str]] = {}
    return tuple(_one(tree, place, name, records[name], owners, wheels) for name in sorted(records))


def _one(
    tree: Path, place: Place, name: str, record: Path, owners: dict[str, tuple[str, str]], wheels: Mapping[str, Path]
) -> Distribution:
    rows, files = [], {}
    for path, said, size in _rows(record):
        folder, _, file = path.partition("/")
        if folder.endswith(".dist-info") and file in INSTALLER:  # its own, not of what it brings along
            continue
        if not os.path.lexists(tree / path):
            raise TandemError(f"{name}: {path!r} is in its RECORD and was not installed", hint=UNNAMEABLE)
        owner, before = owners.setdefault(path, (name, said))
        if owner == name:
            files[path] = place.of(path)
        elif before != said:
            if (content := _content(wheels[owner], path)) is None:
                raise TandemError(f"{wheels[owner].name} has no {path}, which its RECORD names")
            (tree / path).write_bytes(content)
        changed = (owner != name and before != said) or _script(tree / path, path, place.shebang)
        if path.startswith("bin/") and owner in wheels:
            _refuse_unknown(wheels[owner], path, (tree / path).read_bytes(), place.shebang)
        if changed:
            said, size = _vouch((tree / path).read_bytes())
        rows.append((os.path.relpath(place.of(path), place.site), said, size))
    record.write_text(_text(rows), encoding="utf-8")
    return Distribution(name, files)


def _name(folder: Path) -> str:
    return normalised_name(folder.name.removesuffix(".dist-info").rpartition("-")[0])


def _rows(record: Path) -> list[tuple[str, str, str]]:
    with record.open(encoding="utf-8", newline="") as file:
        rows = [[*row, "", ""] for row in csv.reader(file) if row]
    return sorted({(os.path.normpath(path), said, size) for path, said, size, *_ in rows})


def _text(rows: Iterable[tuple[str, str, str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(sorted(rows))
    return out.getvalue()


def _vouch(content: bytes) -> tuple[str, str]:
    """Hash and size of a file as RECORD has them."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def record(files: Mapping[str, bytes], itself: str) -> str:
    """The RECORD of a distribution with these files (path below dist-packages → content); `itself` is its own path."""
    return _text([*((path, *_vouch(content)) for path, content in files.items()), (itself, "", "")])


def _script(file: Path, path: str, shebang: bytes) -> bool:
    """Make a Python script name the image's interpreter; returns whether that changed it."""
    if not path.startswith("bin/"):
        return False
    content = file.read_bytes()
    fixed = _PYTHON.sub(shebang, _SHELL.sub(shebang, content))
    if fixed == content:
        return False
    file.write_bytes(fixed)
    return True


def _refuse_unknown(wheel: Path, path: str, content: bytes, shebang: bytes) -> None:
    """Raise TandemError for a script that uv wrote, and that still names what lies on this machine."""
    written = _content(wheel, path)
    if (written is None or written.startswith(b"#!python")) and not content.startswith(shebang):
        head = content.partition(b"\n")[0].decode(errors="replace")
        raise TandemError(f"{wheel.name}: uv wrote the script {path} in an unknown form, which begins with {head}")


def _content(wheel: Path, path: str) -> bytes | None:
    """What a wheel has for this path of uv's target folder; None for a script that uv made of an entry point."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            there = re.sub(r"\A[^/]+\.data/scripts/", "bin/", name)
            if re.sub(r"\A[^/]+\.data/(purelib|platlib|data)/", "", there) == path:
                return archive.read(name)
    return None


def foreign(files: Mapping[str, Path], arch: str) -> list[str]:
    """The files that hold machine code of another architecture than `arch`, with that architecture, in words.

    Code for accelerators and for BPF (ELF too) is nobody's mistake and is passed over.
    """
    found = []
    for name in sorted(files):
        with files[name].open("rb") as file:
            head = file.read(20)
        if head[:4] == b"\x7fELF":
            machine = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            if machine != platforms.ELF_MACHINES[arch] and machine in platforms.CPUS:
                found.append(f"{name} ({platforms.CPUS[machine]})")
    return found
