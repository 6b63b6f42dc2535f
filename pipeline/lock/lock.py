"""request → lock: uv for the wheels, apt for the .debs, and no pin moves unless someone asks."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.models import CombinedImage, DebianImage, Image
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.lock import additions, aliases, combined, debian, lockfile
from pipeline.lock.contents import CombinedLock, DebianLock, Lock
from pipeline.lock.request import FILES, file_paths, request
from pipeline.lock.wheel_tags import Target

__all__ = ["Lock", "answers", "make", "read", "target"]

read = lockfile.read


def answers(lock: Lock, image: Image) -> bool:
    """Whether a lock answers what its image asks now."""
    return lock.request == request(image)


def target(lock: Lock) -> Target:
    """What the lock's wheels must fit."""
    match lock:
        case DebianLock():
            return debian.target(lock.arch, lock.python, lock.debs, lock.name)
        case CombinedLock():
            return additions.target(lock.reading)


def make(name: str, image: Image, root: Path, mode: str, log: Log) -> Lock:
    """The lock that answers an image's request, written below `root`/lockfiles if it had to be made.

    `mode` is "" (a lock that answers is kept; else as few pins move as can be), "frozen" (ConfigError instead of
    resolving), "upgrade" (pins move), or "upgrade:NAME,…" (only these packages' pins move). Raises ConfigError for an
    alias of what is not locked, once the lock is there: another alias needs no other lock.
    """
    found = _answering(name, image, root, mode, log)
    aliases.check_aliases(name, image, found)
    return found


def _answering(name: str, image: Image, root: Path, mode: str, log: Log) -> Lock:
    names = upgraded(mode)
    old = _old(name, root, mode)
    if old is not None and names is None:
        if answers(old, image):
            return old
        log.line(f"lockfiles/{name}: " + differences(old.request, request(image)))
    if mode == "frozen":
        assert old is not None
        raise ConfigError(
            f"lockfiles/{name}.lock.json does not answer image.yaml: {differences(old.request, request(image))}",
            hint=f"`TANDEM_LOCK= ./doitw lock:{name}`, then commit lockfiles/",
        )
    locked: Lock
    # A lock of the other kind pins nothing that this one has.
    match image:
        case DebianImage():
            locked = debian.make(name, image, old if isinstance(old, DebianLock) else None, names, log)
        case CombinedImage():
            locked = combined.make(name, image, root, old if isinstance(old, CombinedLock) else None, names, log)
    lockfile.write(locked, root)
    return locked


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What is asked now and was not, and the other way round, in words."""
    words = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, list) and isinstance(after, list):
            words += [f"{key}: {item} is new" for item in after if item not in before]
            words += [f"{key}: {item} is gone" for item in before if item not in after]
        elif before != after:
            words.append(f"{key}: {before} became {after}")
    return "; ".join(words)


def upgraded(mode: str) -> frozenset[str] | None:
    """The packages whose pins may move: None for none, the empty set for all."""
    word, _, names = mode.partition(":")
    if mode in {"", "frozen"}:
        return None
    if word != "upgrade":
        raise ConfigError(f"TANDEM_LOCK={mode}: not one of frozen, upgrade, upgrade:NAME,…")
    return frozenset(filter(None, re.split(r"[,\s]+", names)))


def _old(name: str, root: Path, mode: str) -> Lock | None:
    """The lock as it is; None if there is none, or if it is damaged and all pins may move anyway."""
    if mode != "frozen" and not (root / file_paths(name, FILES)["head"]).exists():
        return None
    try:
        return read(name, root)
    except ConfigError:
        if mode == "upgrade":
            return None
        raise
