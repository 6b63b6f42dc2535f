"""Turns inputs into their values now, and these into one hash. Every spelling here decides what runs again.

A key says what kind of input it is: `file:dodo.py`, `param:base.packages`, `tool:uv`,
`code:pipeline.image.base`, `upstream:build:cpu`. A value is short: a hash, or the value itself if it is a parameter of
at most 120 characters.
"""

# A Path for each of ten thousand files costs more than its stat.
# ruff: noqa: PTH115, PTH116, PTH118

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from pipeline.core.errors import TandemError
from pipeline.graph.code_hash import CodeHashes
from pipeline.graph.globs import expand, is_pattern
from pipeline.graph.keys import canonical_json
from pipeline.graph.stat_cache import StatCache, is_executable
from pipeline.graph.task import Inputs, Json, Outputs
from pipeline.graph.tools import Tools

SCHEMA = 1
"""Count up when a spelling below changes: everything runs once more, and `why` names the reason."""
VERBATIM_CHARACTERS = 120
PLAIN = re.compile(r"[A-Za-z0-9_-]+")

Values = dict[str, str]


class Surroundings(Struct, frozen=True, kw_only=True):
    """What inputs are looked up in."""

    root: Path
    tools: Tools
    cache: StatCache
    code: CodeHashes


def input_values(inputs: Inputs, around: Surroundings) -> Values:
    """Returns the value of each declared input now, by key. Order and the checkout's location do not matter.

    Raises ConfigError for a wrong declaration, TandemError for a file that cannot be read.
    """
    values: Values = {}
    values.update(_files(inputs.files, around))
    values.update(_params("", inputs.params))
    values.update({f"tool:{name}": around.tools.identity(name) for name in inputs.tools})
    values.update(code_values(inputs.code, around))
    return values


def upstream_values(outputs: Mapping[str, Outputs]) -> Values:
    """Returns the results of upstream tasks as inputs: by what came out, not by what went in."""
    return {f"upstream:{task}": result_digest(result) for task, result in outputs.items()}


def result_digest(outputs: Outputs) -> str:
    """Returns the identity of a result."""
    return _sha256(canonical_json(outputs))


def fingerprint(task: str, values: Mapping[str, str]) -> str:
    """Returns one hash over a task's name and all its inputs, in hex."""
    return _sha256(f"tandem fingerprint {SCHEMA}\n{canonical_json([task, {**values}])}")


def _files(patterns: tuple[str, ...], around: Surroundings) -> Iterator[tuple[str, str]]:
    root = os.fspath(around.root)
    try:
        statuses = expand(root, patterns)
        for path, status in statuses.items():
            yield f"file:{path}", "missing" if status is None else _file(os.path.join(root, path), status, around.cache)
    except OSError as error:
        raise TandemError(f"{error.filename}: cannot be read: {error.strerror}") from error
    if not statuses:
        yield from ((f"file:{pattern}", "no file") for pattern in patterns if is_pattern(pattern))


def _file(path: str, status: os.stat_result, cache: StatCache) -> str:
    if stat.S_ISLNK(status.st_mode):
        return _link(path, cache)
    if not stat.S_ISREG(status.st_mode):
        return f"not a file ({stat.filemode(status.st_mode)[0]})"
    return ("755 " if is_executable(status.st_mode) else "644 ") + cache.sha256(path, status)


def _link(path: str, cache: StatCache) -> str:
    """Returns a link as its target's name and content: an image gets the name, a program reads the file."""
    name = _sha256(os.fsencode(os.readlink(path)).hex())[:16]
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"link {name} to nothing"
    return (
        f"link {name} to a folder" if stat.S_ISDIR(status.st_mode) else f"link {name} to {_file(path, status, cache)}"
    )


def _params(where: str, params: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for key, value in params.items():
        name = where + _name(key)
        if isinstance(value, Mapping) and value:
            yield from _params(name + ".", value)
        else:
            yield f"param:{name}", _short(canonical_json(value))


def _name(key: str) -> str:
    """Quotes a key with a dot of its own, so that no two parameters share a spelling."""
    return key if PLAIN.fullmatch(key) else canonical_json(key)


def code_values(names: Iterable[str], around: Surroundings) -> Iterator[tuple[str, str]]:
    """Yields the hashes of modules and functions by key. Raises ConfigError if source is not Python, TandemError."""
    try:
        for name, value in around.code.of(names).items():
            yield f"code:{name}", value
    except OSError as error:
        raise TandemError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _short(text: str) -> str:
    return text if len(text) <= VERBATIM_CHARACTERS else f"sha256 {_sha256(text)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
