"""Stage lock: makes a lock that answers an image's request, with uv for the wheels and apt for the Debian packages.

A pin moves only if the request or TANDEM_LOCK asks for it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.models import CombinedImage, DebianImage, Image
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.lock import additions, aliases, combined, debian, lockfile
from pipeline.lock.contents import CombinedLock, DebianLock, Lock
from pipeline.lock.request import FILES, file_paths, request_of
from pipeline.lock.wheel_tags import WheelTarget


def answers_request(lock: Lock, image: Image) -> bool:
    """Returns whether a lock was made for the request that its image makes now."""
    return lock.request == request_of(image)


def wheel_target(lock: Lock) -> WheelTarget:
    """Returns what the lock's wheels must fit. Raises ConfigError if the image has no glibc."""
    match lock:
        case DebianLock():
            return debian.wheel_target(lock.arch, lock.python, lock.debs, lock.name)
        case CombinedLock():
            return additions.wheel_target(lock.facts)


def lock_image(name: str, image: Image, root: Path, mode: str, log: Log) -> Lock:
    """Returns the lock that answers an image's request; writes it below `root`/lockfiles if it is a new one.

    `mode` is the value of TANDEM_LOCK: "" keeps a lock that answers, and else moves as few pins as possible; "frozen"
    raises ConfigError instead of resolving; "upgrade" moves all pins; "upgrade:NAME,…" moves those of these packages.
    Raises ConfigError, and for an alias of an unlocked distribution only once the lock is written: another alias needs
    no other lock. Raises TandemError if index, mirror or registry cannot be reached.
    """
    lock = _lock_request(name, image, root, mode, log)
    aliases.check_aliases(name, image, lock)
    return lock


def _lock_request(name: str, image: Image, root: Path, mode: str, log: Log) -> Lock:
    names = names_to_upgrade(mode)
    old = _read_old(name, root, mode)
    if old is not None and names is None:
        if answers_request(old, image):
            return old
        log.line(f"lockfiles/{name}: {describe_differences(old.request, request_of(image))}")
    if mode == "frozen":
        assert old is not None
        differences = describe_differences(old.request, request_of(image))
        raise ConfigError(
            f"lockfiles/{name}.lock.json does not answer image.yaml: {differences}",
            hint=f"`TANDEM_LOCK= ./doitw lock:{name}`, then commit lockfiles/",
        )
    lock: Lock
    # A lock of the other kind has no pin to keep.
    match image:
        case DebianImage():
            lock = debian.lock_debian_image(name, image, old if isinstance(old, DebianLock) else None, names, log)
        case CombinedImage():
            before = old if isinstance(old, CombinedLock) else None
            lock = combined.lock_combined_image(name, image, root, before, names, log)
    lockfile.write_lock(lock, root)
    return lock


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Returns what two requests do not have in common, in words."""
    words = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, list) and isinstance(after, list):
            words += [f"{key}: {item} is new" for item in after if item not in before]
            words += [f"{key}: {item} is gone" for item in before if item not in after]
        elif before != after:
            words.append(f"{key}: {before} became {after}")
    return "; ".join(words)


def names_to_upgrade(mode: str) -> frozenset[str] | None:
    """Returns the packages whose pins may move: None for none, the empty set for all.

    Raises ConfigError for a value of TANDEM_LOCK that is not a mode.
    """
    word, _, names = mode.partition(":")
    if mode in {"", "frozen"}:
        return None
    if word != "upgrade":
        raise ConfigError(f"TANDEM_LOCK={mode}: not one of frozen, upgrade, upgrade:NAME[,NAME]")
    return frozenset(filter(None, re.split(r"[,\s]+", names)))


def _read_old(name: str, root: Path, mode: str) -> Lock | None:
    """Return the lock as it is; None if there is none, or if it is damaged and all pins may move anyway."""
    if mode != "frozen" and not (root / file_paths(name, FILES)["head"]).exists():
        return None
    try:
        return lockfile.read_lock(name, root)
    except ConfigError:
        if mode == "upgrade":
            return None
        raise
