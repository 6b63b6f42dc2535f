"""Reads and writes the files of a lock, each by one rename.

They lie below lockfiles/ and are committed: `<image>.requirements.txt` (as pip and uv read it, with hashes, without
URLs), `<image>.debs.txt` and `<image>.interpreter.txt` (columns), and `<image>.lock.json` (the request, the cut-off
date, the versions of the resolvers, the wheels' file names and sizes, the hashes of the other files). An image on top
of another one has `<image>.reading.json`, the facts of its base, in place of `<image>.debs.txt`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pipeline.core.errors import ConfigError
from pipeline.core.files import replacing
from pipeline.foreign.facts import ImageFacts
from pipeline.lock.contents import CombinedLock, DebianLock, Lock
from pipeline.lock.debs import Deb
from pipeline.lock.request import FILES, FILES_ON_IMAGE, file_paths
from pipeline.lock.resolver import Wheel

Kind = TypeVar("Kind", DebianLock, CombinedLock)
SCHEMA = 1
DEBS_HEAD = "# package version architecture sha256 size path-below-the-mirror"
WHEELS_HEAD = "# Wheels for one platform. Made by `./doitw lock:{name}`; `pip install --require-hashes -r` reads it."
PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s\\]+)((?:\s*\\\n\s+--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def read_lock(name: str, root: Path) -> Lock:
    """Returns the lock of an image. Raises ConfigError if a file of it is missing or is not as it was written."""
    path = file_paths(name, FILES)["head"]
    text = {"head": _read_text(root, path, name)}
    try:
        head = json.loads(text["head"])
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']}, not {SCHEMA}")
        paths = file_paths(name, FILES_ON_IMAGE if "base" in head else FILES)
        text |= {part: _read_text(root, path, name) for part, path in paths.items() if part != "head"}
        for part, sha256 in head["files"].items():
            if _sha256(text[part]) != sha256:
                raise ValueError(f"{paths[part]} is not the file that was written with it")
        return _decoded(name, head, text)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}", hint=f"restore it, or `./doitw relock {name}`") from error


def _decoded(name: str, head: Mapping[str, Any], text: Mapping[str, str]) -> Lock:
    shared: dict[str, Any] = {
        "name": name,
        "request": head["request"],
        "cutoff": head["cutoff"],
        "epoch": head["epoch"],
        "wheels": parse_requirements(text["wheels"], head["wheels"]),
        "interpreter": parse_debs(text["interpreter"]),
        "tools": head["tools"],
    }
    if "base" in head:
        facts = msgspec.json.decode(text["reading"], type=ImageFacts)
        return CombinedLock(**shared, base=head["base"], facts=facts)
    return DebianLock(**shared, debs=parse_debs(text["debs"]))


def read_lock_of(kind: type[Kind], name: str, root: Path) -> Kind:
    """Returns the lock of an image of this kind. Raises ConfigError as read_lock() does, and for the other kind."""
    locked = read_lock(name, root)
    if not isinstance(locked, kind):
        raise ConfigError(
            f"{file_paths(name, FILES)['head']}: it locks an image that is made in another way",
            hint=f"`./doitw relock {name}`",
        )
    return locked


def write_lock(lock: Lock, root: Path) -> None:
    """Writes a lock's files, its head last: after a kill in between, reading it reports that it is not complete."""
    text = {"wheels": format_requirements(lock.name, lock.wheels), "interpreter": format_debs(lock.interpreter)}
    head = {
        "schema": SCHEMA,
        "request": lock.request,
        "cutoff": lock.cutoff,
        "epoch": lock.epoch,
        "tools": lock.tools,
        "wheels": {wheel.sha256: {"file": wheel.file, "size": wheel.size} for wheel in lock.wheels},
    }
    match lock:
        case DebianLock():
            _write_files(lock.name, FILES, head, {**text, "debs": format_debs(lock.debs)}, root)
        case CombinedLock():
            facts = msgspec.json.format(msgspec.json.encode(lock.facts, order="sorted"), indent=1).decode() + "\n"
            _write_files(lock.name, FILES_ON_IMAGE, {**head, "base": lock.base}, {**text, "reading": facts}, root)


def _write_files(
    name: str, ends: Mapping[str, str], head: Mapping[str, Any], text: Mapping[str, str], root: Path
) -> None:
    paths = file_paths(name, ends)
    files = {part: _sha256(content) for part, content in text.items()}
    last = json.dumps({**head, "files": files}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    with ExitStack() as pending:  # it ends in reverse order: the head is replaced last
        for part, content in {"head": last, **text}.items():
            temporary = pending.enter_context(replacing(root / paths[part], sync=True))
            temporary.write_text(content, encoding="utf-8")
            temporary.chmod(0o644)


def format_requirements(name: str, pins: Iterable[Wheel]) -> str:
    """Returns the wheels as a requirements file; the hash of the wheel that fits best comes first."""
    blocks = [
        " \\\n".join([f"{pin.name}=={pin.version}", *(f"    --hash={hash_}" for hash_ in pin.hashes)])
        for pin in sorted(pins)
    ]
    return "\n".join([WHEELS_HEAD.format(name=name), *blocks]) + "\n"


def parse_requirements(text: str, details: Mapping[str, Any]) -> tuple[Wheel, ...]:
    """Returns the wheels of a file that format_requirements() wrote; `details` has file names and sizes by SHA-256.

    Raises ValueError for a line that format_requirements() would not write.
    """
    wheels = []
    for name, version, tail in PINNED.findall(text):
        hashes = tuple(re.findall(r"sha256:[0-9a-f]{64}", tail))
        entry = details.get(hashes[0].partition(":")[2], {"file": "", "size": 0})
        wheels.append(Wheel(name, version, hashes, entry["file"], entry["size"]))
    rest = [line for line in PINNED.sub("", text).splitlines() if line.strip() and not line.startswith("#")]
    if rest:
        raise ValueError(f"not a pinned requirement with hashes: {rest[0]!r}")
    return tuple(wheels)


def format_debs(packages: Iterable[Deb]) -> str:
    """Returns packages as text, one a line, with DEBS_HEAD as the first line."""
    lines = [" ".join([d.name, d.version, d.arch, d.sha256, str(d.size), d.path]) for d in sorted(packages)]
    return "\n".join([DEBS_HEAD, *lines]) + "\n"


def parse_debs(text: str) -> tuple[Deb, ...]:
    """Returns the packages of a text that format_debs() wrote. Raises ValueError for a line without six columns."""
    packages = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            words = line.split()
            if len(words) != 6:
                raise ValueError(f"not six columns: {line!r}")
            packages.append(Deb(words[0], words[1], words[2], words[3], int(words[4]), words[5]))
    return tuple(packages)


def _read_text(root: Path, path: str, name: str) -> str:
    try:
        return (root / path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if path == file_paths(name, FILES)["head"]:
            hint = f"`TANDEM_LOCK= ./doitw lock:{name}` makes it"
            raise ConfigError(f"{path}: there is no such lock", hint=hint) from error
        message = f"{path}: it belongs to a lock, and is missing"
        raise ConfigError(message, hint=f"restore it, or `./doitw relock {name}`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
