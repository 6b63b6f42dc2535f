"""Finds files below the checkout by pattern: `*`, `?`, `[…]`, `**` for any depth, `!` in front to leave out."""

# A Path for each of ten thousand files costs more than its stat.
# ruff: noqa: PTH116, PTH118

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache

from pipeline.core.errors import ConfigError

ALWAYS_OUT = frozenset({"__pycache__", ".git"})
"""Folders that are never an input: Python and git write them."""
MAGIC = re.compile(r"[*?\[]")


def is_pattern(text: str) -> bool:
    """Returns whether it is a pattern. If not, it names one file or folder."""
    return MAGIC.search(text) is not None


def expand(root: str, patterns: Iterable[str], *, out: frozenset[str] = ALWAYS_OUT) -> dict[str, os.stat_result | None]:
    """Returns the files and links that the patterns name, by path below `root`, sorted, each with its own stat.

    A literal path that does not exist has None.

    A folder stands for all files below it. Links to folders are not followed.
    Raises ConfigError for a path outside and for a link to itself, OSError for a folder that cannot be read.
    """
    statuses: dict[str, os.stat_result | None] = {}
    exclusions = []
    for pattern in patterns:
        if pattern.startswith("!"):
            exclusions.append(_regex(_checked(pattern[1:])))
        else:
            statuses.update(_one(root, _checked(pattern), out))
    kept = {path: statuses[path] for path in sorted(statuses) if not any(rule.fullmatch(path) for rule in exclusions)}
    for path, status in kept.items():
        if status and stat.S_ISLNK(status.st_mode):
            _refuse_loop(root, path)
    return kept


def _refuse_loop(root: str, path: str) -> None:
    try:
        os.stat(os.path.join(root, path))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(
                f"{path}: a link that leads to itself", hint="remove it, or let it lead elsewhere"
            ) from error


def _checked(pattern: str) -> str:
    parts = pattern.split("/")
    if pattern.startswith("/") or ".." in parts:
        raise ConfigError(f"{pattern}: an input must lie below the checkout")
    return "/".join(part for part in parts if part not in ("", "."))


def _one(root: str, pattern: str, out: frozenset[str]) -> Iterator[tuple[str, os.stat_result | None]]:
    if not is_pattern(pattern):
        yield from _literal(root, pattern, out)
        return
    fixed = []
    for part in pattern.split("/")[:-1]:
        if is_pattern(part):
            break
        fixed.append(part)
    regex = _regex(pattern)
    depth = None if "**" in pattern else pattern.count("/")
    yield from _walk(root, "/".join(fixed), depth, out, regex)


def _literal(root: str, path: str, out: frozenset[str]) -> Iterator[tuple[str, os.stat_result | None]]:
    full = os.path.join(root, path)
    try:
        status = os.lstat(full)
    except (FileNotFoundError, NotADirectoryError):
        yield path, None
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _walk(root, path, None, out)
    else:
        yield path, status


def _walk(
    root: str, below: str, depth: int | None, out: frozenset[str], only: re.Pattern[str] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yields every file and link below a folder; `depth` is the number of slashes to go down to."""
    folders = [below]
    while folders:
        folder = folders.pop()
        prefix = folder + "/" if folder else ""
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    if not entry.is_dir(follow_symlinks=False):
                        if only is None or only.fullmatch(path):
                            yield path, entry.stat(follow_symlinks=False)
                    elif entry.name not in out and (depth is None or prefix.count("/") < depth):
                        folders.append(path)
        except (FileNotFoundError, NotADirectoryError):
            continue


@lru_cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts = pattern.split("/")
    spelled = ""
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if part == "**":
            spelled += ".*" if last else "(?:.*/)?"
        else:
            spelled += _segment(part) + ("" if last else "/")
    return re.compile(spelled, re.DOTALL)


def _segment(part: str) -> str:
    spelled = ""
    i = 0
    while i < len(part):
        end = part.find("]", i + 2) if part[i] == "[" else -1
        if part[i] == "*":
            spelled += "[^/]*"
        elif part[i] == "?":
            spelled += "[^/]"
        elif end > 0:
            inner = part[i + 1 : end].replace("\\", "\\\\")
            spelled += "[" + ("^/" + inner[1:] if inner.startswith("!") else inner) + "]"
            i = end
        else:
            spelled += re.escape(part[i])
        i += 1
    return spelled
