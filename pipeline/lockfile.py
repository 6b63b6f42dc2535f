"""The files of a lock: reading, and writing each by one rename.

Below lockfiles/, committed: `<image>.requirements.txt` (as pip and uv read it, with hashes, without URLs),
`<image>.debs.txt` and `<image>.interpreter.txt` (columns), and `<image>.lock.json` (the request, the cut-off date, who
resolved it, the wheels' file names and sizes, the hashes of the other three).
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

from pipeline.debs import Deb
from pipeline.errors import ConfigError
from pipeline.resolve import Wheel

SCHEMA = 1
DEBS = "# package version architecture sha256 size path-below-the-mirror"
WHEELS = "# Wheels for one platform. Made by `./doitw lock:{name}`; `pip install --require-hashes -r` reads it."
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s\\]+)((?:\s*\\\n\s+--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What answers an image's request.

    `epoch` is SOURCE_DATE_EPOCH in seconds; `debs` are the image's, `interpreter` those of a Python for the build
    machine, for each architecture that it may have.
    """

    name: str
    request: dict[str, Any]
    cutoff: str
    epoch: int
    wheels: tuple[Wheel, ...]
    debs: tuple[Deb, ...]
    interpreter: tuple[Deb, ...]
    tools: dict[str, str]

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
        return str(self.request["python"])

    @property
    def suite(self) -> str:
        """The Debian suite of the base, as in trixie."""
        return str(self.request["debian"])


def files(name: str) -> dict[str, str]:
    """The paths of a lock's files below the root, by what they hold."""
    ends = {"head": "lock.json", "wheels": "requirements.txt", "debs": "debs.txt", "interpreter": "interpreter.txt"}
    return {part: f"lockfiles/{name}.{end}" for part, end in ends.items()}


def read(name: str, root: Path) -> Lock:
    """The lock of an image. Raises ConfigError if there is none, or if a file of it is not as it was written."""
    paths = files(name)
    text = {part: _text(root, path, name) for part, path in paths.items()}
    try:
        head = json.loads(text["head"])
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']}, not {SCHEMA}")
        for part, written in head["files"].items():
            if _sha256(text[part]) != written:
                raise ValueError(f"{paths[part]} is not the file that was written with it")
        return Lock(
            name=name,
            request=head["request"],
            cutoff=head["cutoff"],
            epoch=head["epoch"],
            wheels=wheels(text["wheels"], head["wheels"]),
            debs=debs(text["debs"]),
            interpreter=debs(text["interpreter"]),
            tools=head["tools"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{paths['head']}: {error}", hint=f"restore it, or `./doitw relock {name}`") from error


def write(lock: Lock, root: Path) -> None:
    """Write a lock's files, its head last: a kill in between leaves a lock that says it is not whole."""
    paths = files(lock.name)
    text = {
        "wheels": requirements(lock.name, lock.wheels),
        "debs": columns(lock.debs),
        "interpreter": columns(lock.interpreter),
    }
    head = {
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
        raise ConfigError(f"{path}: there is no such lock", hint=f"`./doitw lock:{name}` makes it") from error
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
