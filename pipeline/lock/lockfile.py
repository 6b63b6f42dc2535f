"""The files of a lock: reading, and writing each by one rename.

Below lockfiles/, committed: `<image>.requirements.txt` (as pip and uv read it, with hashes, without URLs),
`<image>.debs.txt` and `<image>.interpreter.txt` (columns), and `<image>.lock.json` (the request, the cut-off date, who
resolved it, the wheels' file names and sizes, the hashes of the other three). An image on another one has
`<image>.reading.json` in place of the .debs: what that one holds.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pipeline.core.errors import ConfigError
from pipeline.foreign.facts import ImageFacts
from pipeline.lock import place
from pipeline.lock.debs import Deb
from pipeline.lock.place import Place
from pipeline.lock.request import files
from pipeline.lock.resolver import Wheel

SCHEMA = 1
SUITES = {"3.11": "bookworm", "3.13": "trixie"}
"""Which Debian suite has which Python."""
DEBS = "# package version architecture sha256 size path-below-the-mirror"
WHEELS = "# Wheels for one platform. Made by `./doitw lock:{name}`; `pip install --require-hashes -r` reads it."
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s\\]+)((?:\s*\\\n\s+--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What answers an image's request.

    `epoch` is SOURCE_DATE_EPOCH in seconds; `debs` are the image's, `interpreter` those of a Python for the build
    machine, for each architecture that it may have. On another image, `base` is that one's NAME@sha256:…, `reading`
    what it holds, and there are no `debs`; `interpreter` is empty if no Debian suite has that Python.
    """

    name: str
    request: dict[str, Any]
    cutoff: str
    epoch: int
    wheels: tuple[Wheel, ...]
    debs: tuple[Deb, ...]
    interpreter: tuple[Deb, ...]
    tools: dict[str, str]
    base: str = ""
    reading: ImageFacts | None = None

    @property
    def platform(self) -> str:
        """As in linux/arm64."""
        return str(self.request["platform"])

    @property
    def arch(self) -> str:
        """The target's architecture as Debian and Docker call it."""
        return self.platform.partition("/")[2]

    @property
    def python(self) -> str:
        """The version of the image's interpreter, as in 3.13."""
        return self.reading.python.minor if self.reading else str(self.request["python"])

    @property
    def suite(self) -> str:
        """The Debian suite of the base, or of a Python like the base's, as in trixie; empty if there is none."""
        return SUITES.get(self.python, "") if self.reading else str(self.request["debian"])

    @property
    def inside(self) -> dict[str, str]:
        """What the image below brings: normalised name → version."""
        # The first on the path is what Python imports.
        return {found.name: found.version for found in reversed(self.reading.distributions)} if self.reading else {}

    @property
    def versions(self) -> dict[str, str]:
        """Every distribution that the image shall hold: normalised name → version."""
        return {**self.inside, **{wheel.name: wheel.version for wheel in self.wheels}}

    @property
    def place(self) -> Place:
        """Where the image has its Python packages."""
        if self.reading is None:
            return place.debian(self.python)
        python = self.reading.python
        site, scripts = python.site.strip("/"), python.scripts.strip("/")
        return Place(site, scripts.rpartition("/")[0], scripts, python.path)


def read(name: str, root: Path) -> Lock:
    """The lock of an image. Raises ConfigError if there is none, or if a file of it is not as it was written."""
    paths = files(name)
    text = {"head": _text(root, paths["head"], name)}
    try:
        head = json.loads(text["head"])
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']}, not {SCHEMA}")
        paths = files(name, on_image="base" in head)
        text |= {part: _text(root, path, name) for part, path in paths.items() if part != "head"}
        for part, written in head["files"].items():
            if _sha256(text[part]) != written:
                raise ValueError(f"{paths[part]} is not the file that was written with it")
        return Lock(
            name=name,
            request=head["request"],
            cutoff=head["cutoff"],
            epoch=head["epoch"],
            wheels=wheels(text["wheels"], head["wheels"]),
            debs=debs(text.get("debs", "")),
            interpreter=debs(text["interpreter"]),
            tools=head["tools"],
            base=head.get("base", ""),
            reading=msgspec.json.decode(text["reading"], type=ImageFacts) if "reading" in text else None,
        )
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{paths['head']}: {error}", hint=f"restore it, or `./doitw relock {name}`") from error


def write(lock: Lock, root: Path) -> None:
    """Write a lock's files, its head last: a kill in between leaves a lock that says it is not whole."""
    paths = files(lock.name, on_image=lock.reading is not None)
    text = {"wheels": requirements(lock.name, lock.wheels), "interpreter": columns(lock.interpreter)}
    if lock.reading is None:
        text["debs"] = columns(lock.debs)
    else:
        text["reading"] = (
            msgspec.json.format(msgspec.json.encode(lock.reading, order="sorted"), indent=1).decode() + "\n"
        )
    head = {
        **({"base": lock.base} if lock.reading else {}),
        "schema": SCHEMA,
        "request": lock.request,
        "cutoff": lock.cutoff,
        "epoch": lock.epoch,
        "tools": lock.tools,
        "files": {part: _sha256(text[part]) for part in text},
        "wheels": {wheel.sha256: {"file": wheel.file, "size": wheel.size} for wheel in lock.wheels},
    }
    text["head"] = json.dumps(head, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    ready = {part: _beside(root / paths[part], content) for part, content in text.items()}
    for part, file in ready.items():
        file.replace(root / paths[part])


def requirements(name: str, pins: Iterable[Wheel]) -> str:
    """The wheels as a requirements file; the hash of the wheel that fits best comes first."""
    blocks = [
        " \\\n".join([f"{pin.name}=={pin.version}", *(f"    --hash={hash_}" for hash_ in pin.hashes)])
        for pin in sorted(pins)
    ]
    return "\n".join([WHEELS.format(name=name), *blocks]) + "\n"


def wheels(text: str, details: Mapping[str, Any]) -> tuple[Wheel, ...]:
    """A requirements file as requirements() writes it. Raises ValueError for a line that it would not write."""
    found = []
    for name, version, tail in PIN.findall(text):
        hashes = tuple(re.findall(r"sha256:[0-9a-f]{64}", tail))
        entry = details.get(hashes[0].partition(":")[2], {"file": "", "size": 0})
        found.append(Wheel(name, version, hashes, entry["file"], entry["size"]))
    rest = [line for line in PIN.sub("", text).splitlines() if line.strip() and not line.startswith("#")]
    if rest:
        raise ValueError(f"not a pinned requirement with hashes: {rest[0]!r}")
    return tuple(found)


def columns(packages: Iterable[Deb]) -> str:
    """Packages, one a line."""
    lines = [" ".join([d.name, d.version, d.arch, d.sha256, str(d.size), d.path]) for d in sorted(packages)]
    return "\n".join([DEBS, *lines]) + "\n"


def debs(text: str) -> tuple[Deb, ...]:
    """Packages as columns() writes them. Raises ValueError for a line that has not six columns."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            words = line.split()
            if len(words) != 6:
                raise ValueError(f"not six columns: {line!r}")
            found.append(Deb(words[0], words[1], words[2], words[3], int(words[4]), words[5]))
    return tuple(found)


def _text(root: Path, path: str, name: str) -> str:
    try:
        return (root / path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if path == files(name)["head"]:
            hint = f"`TANDEM_LOCK= ./doitw lock:{name}` makes it"
            raise ConfigError(f"{path}: there is no such lock", hint=hint) from error
        said = f"{path}: it belongs to a lock, and is not there"
        raise ConfigError(said, hint=f"restore it, or `./doitw relock {name}`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _beside(path: Path, content: str) -> Path:
    """A finished file next to `path`, to be renamed to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", encoding="utf-8", delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    return Path(file.name)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
