"""Parses one YAML file into its value and the line of each key.

PyYAML takes about half as long to import as the whole of this room, so this module is imported only where a file must
be parsed: a file whose value the cache knows needs none of it.
"""

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from pipeline.config.rules import Key
from pipeline.core.errors import ConfigError

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_SHOWN_CHARS = 60
_BOOL = "tag:yaml.org,2002:bool"
_NORMALISED_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))


class _Loader(_SAFE):  # type: ignore[misc]  # chosen at run time
    """Takes only true and false for booleans, as YAML 1.2 and editors do: in `records: off`, off is text."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [(tag, pattern) for tag, pattern in known if tag != _BOOL]
        for first, known in _SAFE.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parse(file: Path, name: str) -> tuple[Any, Mapping[Key, int]]:
    """Returns a file's value and the line of each key; messages call the file `name`.

    Raises OSError; ConfigError if it is not a regular file of valid YAML, or if a key appears twice.
    """
    lines: dict[Key, int] = {}
    text = ""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"{name}: it is not a regular file", hint="put one there, or a link to one")
        text = file.read_bytes().decode()
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _index_lines(node, (), lines, name)
            _refuse_invalid_scalars(node, name)
        value = yaml.load(text, Loader=_Loader)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 at byte {error.start}", hint="save the file as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{name}:{mark.line + 1}" if mark else name
        hint = "look at brackets, quotes and indentation there and in the line above"
        if mark and "\t" in "".join(text.splitlines()[mark.line : mark.line + 1]):
            hint = "YAML is indented by spaces, and there is a tab in the line"
        raise ConfigError(f"{location}: not valid YAML: {error.problem or error.context}", hint=hint) from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply", hint="an alias (*name) inside its own anchor?") from error
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name}: not valid YAML: {reason}", hint="put dates and odd text in quotes") from error
    return {} if value is None else value, lines


def _refuse_invalid_scalars(node: yaml.Node, name: str) -> None:
    """Raises ConfigError for the first scalar whose text is not a value of its kind, such as the date 2026-02-30."""
    if isinstance(node, yaml.ScalarNode):
        try:
            _Loader("").construct_object(node)
        # PyYAML's constructors raise all of these for text that does not fit their tag.
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ConfigError(
                f"{name}:{node.start_mark.line + 1}: {node.value[:MAX_SHOWN_CHARS]!r} is not a valid {kind}",
                hint="put it in quotes if it is text, without a tag (!!…) before it",
            ) from error
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_invalid_scalars(item, name)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for item in pair:
                _refuse_invalid_scalars(item, name)


def _index_lines(node: yaml.Node, key: Key, lines: dict[Key, int], file: str) -> None:
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        names: set[str | int] = set()
        for name, value in node.value:
            inner = (*key, _normalised_key(name))
            lines[inner] = name.start_mark.line + 1
            if inner[-1] in names:
                hint = "keep one of the two: YAML would ignore the first"
                raise ConfigError(f"{file}:{lines[inner]}: the key {inner[-1]!r} appears twice", hint=hint)
            names.add(inner[-1])
            _index_lines(value, inner, lines, file)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _index_lines(value, (*key, i), lines, file)


def _normalised_key(name: yaml.Node) -> str:
    """Returns a key as its value is spelled: 0x1 is 1, and ~ is None, like any other null."""
    is_normalised = isinstance(name, yaml.ScalarNode) and name.tag in _NORMALISED_TAGS
    return str(yaml.load(name.value, Loader=_Loader) if is_normalised else name.value)
