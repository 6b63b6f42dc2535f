"""Makes a tree of installed wheels fit for the image: it must not depend on the build machine.

`uv pip install --target` leaves scripts that name the build machine's Python, and RECORD lines with their hashes. It
puts scripts and shared data into the target folder, which the image has below /usr/local.
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

INSTALLER_FILES = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")

# Of a script that uv writes for a path to Python that is long or has odd letters: lines that are both shell and
# Python. However that path is spelled there, it is this machine's.
_SHELL = re.compile(rb"\A#!/bin/sh\n'''exec' .*?\n' '''\n", re.DOTALL)
_PYTHON = re.compile(rb"\A#![^\n]*python[^\n]*\n")
UNNAMEABLE = "can this system spell the name? ./doitw runs in UTF-8 whatever the locale is"


@dataclass(frozen=True)
class Distribution:
    """An installed distribution."""

    name: str
    """Its normalised name."""
    files: Mapping[str, str]
    """Its files: path in the tree → path in the image."""


def normalise_tree(tree: Path, place: Place, wheels: Mapping[str, Path]) -> tuple[Distribution, ...]:
    """Corrects scripts and RECORDs of an installed tree; returns its distributions, sorted by name.

    `wheels` maps normalised names to wheel files. If two distributions bring one file with different content, the first
    by name wins, whichever was installed last. Raises TandemError if a distribution has no RECORD.
    """
    records = {_name(folder): folder / "RECORD" for folder in sorted(tree.glob("*.dist-info"))}
    lacking = sorted(wheels.keys() - records.keys()) + [n for n, record in records.items() if not record.is_file()]
    if lacking:
        raise TandemError(f"not installed as it should be: {', '.join(lacking)}")
    for name in INSTALLER_FILES:
        for path in tree.glob(f"*.dist-info/{name}"):
            path.unlink()
    owners: dict[str, tuple[str, str]] = {}
    return tuple(_normalised(tree, place, name, records[name], owners, wheels) for name in sorted(records))


def _normalised(
    tree: Path, place: Place, name: str, record: Path, owners: dict[str, tuple[str, str]], wheels: Mapping[str, Path]
) -> Distribution:
    """Correct one distribution; `owners` has the distribution and the hash that claimed each path first."""
    rows, files = [], {}
    for path, recorded_hash, recorded_size in _record_rows(record):
        folder, _, file = path.partition("/")
        if folder.endswith(".dist-info") and file in INSTALLER_FILES:  # its own, not of what it brings along
            continue
        if not os.path.lexists(tree / path):
            raise TandemError(f"{name}: {path!r} is in its RECORD and was not installed", hint=UNNAMEABLE)
        owner, owner_hash = owners.setdefault(path, (name, recorded_hash))
        differs = owner_hash != recorded_hash
        if owner == name:
            files[path] = place.of(path)
        elif differs:
            _restore(tree / path, wheels[owner], path)
        changed = (owner != name and differs) or _correct_script(tree / path, path, place.shebang)
        if path.startswith("bin/") and owner in wheels:
            _refuse_unknown_script(wheels[owner], path, (tree / path).read_bytes(), place.shebang)
        row = _hash_and_size((tree / path).read_bytes()) if changed else (recorded_hash, recorded_size)
        rows.append((os.path.relpath(place.of(path), place.site), *row))
    record.write_text(_record_text(rows), encoding="utf-8")
    return Distribution(name, files)


def _name(folder: Path) -> str:
    return normalised_name(folder.name.removesuffix(".dist-info").rpartition("-")[0])


def _record_rows(record: Path) -> list[tuple[str, str, str]]:
    """Return the rows of a RECORD: path in the tree, hash and size as they are written there."""
    with record.open(encoding="utf-8", newline="") as file:
        rows = [[*row, "", ""] for row in csv.reader(file) if row]
    return sorted({(os.path.normpath(path), recorded_hash, size) for path, recorded_hash, size, *_ in rows})


def _record_text(rows: Iterable[tuple[str, str, str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue()


def _hash_and_size(content: bytes) -> tuple[str, str]:
    """Hash and size of a file as RECORD has them."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def record_text(files: Mapping[str, bytes], own_path: str) -> str:
    """Returns the RECORD of a distribution with these files (path below dist-packages → content)."""
    rows = [(path, *_hash_and_size(content)) for path, content in files.items()]
    return _record_text([*rows, (own_path, "", "")])


def _correct_script(file: Path, path: str, shebang: bytes) -> bool:
    """Make a Python script name the image's interpreter; returns whether that changed it."""
    if not path.startswith("bin/"):
        return False
    content = file.read_bytes()
    corrected = _PYTHON.sub(shebang, _SHELL.sub(shebang, content))
    if corrected == content:
        return False
    file.write_bytes(corrected)
    return True


def _refuse_unknown_script(wheel: Path, path: str, content: bytes, shebang: bytes) -> None:
    """Raise TandemError for a script that uv wrote and that still names a path of this machine."""
    written = _wheel_content(wheel, path)
    if (written is None or written.startswith(b"#!python")) and not content.startswith(shebang):
        head = content.partition(b"\n")[0].decode(errors="replace")
        raise TandemError(f"{wheel.name}: uv wrote the script {path} in an unknown form, which begins with {head}")


def _restore(file: Path, wheel: Path, path: str) -> None:
    """Write a file as its owner's wheel has it."""
    content = _wheel_content(wheel, path)
    if content is None:
        raise TandemError(f"{wheel.name} has no {path}, which its RECORD names")
    file.write_bytes(content)


def _wheel_content(wheel: Path, path: str) -> bytes | None:
    """Return a wheel's content for a path of uv's target folder; None for a script that uv made of an entry point."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            installed = re.sub(r"\A[^/]+\.data/scripts/", "bin/", name)
            if re.sub(r"\A[^/]+\.data/(purelib|platlib|data)/", "", installed) == path:
                return archive.read(name)
    return None


def wrong_architecture(files: Mapping[str, Path], arch: str) -> list[str]:
    """Returns the files with machine code for a CPU other than `arch`, each with that CPU, as in "x.so (x86-64)".

    ELF files for accelerators and for BPF are passed over: they are meant to be there.
    """
    wrong = []
    for name in sorted(files):
        with files[name].open("rb") as file:
            head = file.read(20)
        if head[:4] == b"\x7fELF":
            machine = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            if machine != platforms.ELF_MACHINES[arch] and machine in platforms.CPUS:
                wrong.append(f"{name} ({platforms.CPUS[machine]})")
    return wrong
