"""Explains where a value does not fit its model: a slow second walk, after msgspec has refused the value.

This module, yaml_source and rules replace pydantic, which is slow to import. Every command reads the
configuration: importing rules, which brings msgspec and all models, takes 40 ms, and
pydantic 2.14 with one model of two fields 106 ms (the best of 25 runs each, Python 3.11, two busy cores). A run that
has nothing to do takes less than 300 ms in all.
"""

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from msgspec import inspect as shapes

from pipeline.config.rules import Key, Violation
from pipeline.core.suggest import suggestion

_KINDS: dict[type[Any], tuple[type[Any], str]] = {
    shapes.StrType: (str, "text"),
    shapes.IntType: (int, "a whole number"),
    shapes.BoolType: (bool, "true or false"),
    shapes.StructType: (dict, "a mapping"),
    shapes.DictType: (dict, "a mapping"),
    shapes.VarTupleType: (list, "a list"),
}
_CHOICE = re.compile(r"\^(?P<before>[\w/]*)\((?P<words>\w+(\|\w+)+)\)\$")
_MAX_SHOWN_CHARS = 120
_SCALARS = (int, float, dt.date)
_PRIVATE = (("serve", "args"), ("serve", "env"))
"""Below these keys a value that stands in the wrong place may be a secret."""
_PRIVATE_KINDS = ((str, "a text"), (int | float, "a number"), (object, "a date"))


def explain_violations(value: Any, model: type[Any]) -> Iterator[Violation]:
    """Yields each way in which `value` (plain YAML data) does not fit a msgspec model."""
    yield from _violations(value, shapes.type_info(model), (), {})


def _violations(value: Any, shape: Any, key: Key, extra: Mapping[str, Any]) -> Iterator[Violation]:
    """Yields the violations at `key`. `extra` is the model's own data about the value: `words` say what fits."""
    if isinstance(shape, shapes.Metadata):
        yield from _violations(value, shape.type, key, shape.extra or {})
        return
    if isinstance(shape, shapes.UnionType):
        if value is not None:
            element = next(i for i in shape.types if not isinstance(i, shapes.NoneType))
            yield from _violations(value, element, key, extra)
        return
    kind, words = _KINDS[type(shape)]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield key, f"{_shown(value, key)} is not {words}", _quoting_hint(value, kind)
    elif isinstance(shape, shapes.StructType):
        yield from _struct_violations(value, shape, key)
    elif isinstance(shape, shapes.DictType):
        for name, element in value.items():
            yield from _violations(name, shape.key_type, (*key, str(name)), {})
            yield from _violations(element, shape.value_type, (*key, str(name)), {})
    elif isinstance(shape, shapes.VarTupleType):
        yield from _list_violations(value, shape, key)
    elif isinstance(shape, shapes.StrType):
        yield from _text_violations(value, shape, key, extra)
    elif isinstance(shape, shapes.IntType):
        yield from _number_violations(value, shape, key)


def _shown(value: Any, key: Key) -> str:
    """Returns a value as YAML writes it, shortened; only its kind where it may be a secret."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if any(pair in _PRIVATE for pair in pairwise(key)) and value != key[-1]:
        return next(words for kind, words in _PRIVATE_KINDS if isinstance(value, kind))
    text = str(value) if isinstance(value, _SCALARS) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def _quoting_hint(value: Any, kind: type[Any]) -> str:
    if value is None:
        return "an empty value is null: give a value, or leave the key out"
    if kind is str and isinstance(value, _SCALARS):
        return 'put it in quotes: "…"'
    return "leave out the quotes" if kind is int and isinstance(value, str) and value.isdecimal() else ""


def _struct_violations(value: dict[Any, Any], shape: shapes.StructType, key: Key) -> Iterator[Violation]:
    fields = {field.encode_name: field for field in shape.fields}
    for name in value:
        if name not in fields:
            yield (*key, str(name)), "unknown key", suggestion(str(name), fields)
    for name, field in fields.items():
        if name in value:
            yield from _violations(value[name], field.type, (*key, name), {})
        elif field.required:
            more = field.type.extra_json_schema if isinstance(field.type, shapes.Metadata) else None
            meaning = (more or {}).get("description", "")
            yield key, f"the key {name!r} is missing", f"add {name}:" + (f" ({meaning})" if meaning else "")


def _list_violations(value: list[Any], shape: shapes.VarTupleType, key: Key) -> Iterator[Violation]:
    if len(value) < (shape.min_length or 0):
        yield key, "must not be empty", f"at least {shape.min_length} entry is needed"
    for i, element in enumerate(value):
        yield from _violations(element, shape.item_type, (*key, i), {})


def _text_violations(value: str, shape: shapes.StrType, key: Key, extra: Mapping[str, Any]) -> Iterator[Violation]:
    fits = shape.pattern is None or re.search(shape.pattern, value)
    if fits and len(value) <= (shape.max_length or len(value)):
        return
    if choice := _CHOICE.fullmatch(shape.pattern or ""):
        words = [choice["before"] + word for word in choice["words"].split("|")]
        yield key, f"{_shown(value, key)} is not one of {', '.join(words)}", suggestion(value, words)
    else:
        yield key, f"{_shown(value, key)} is not {extra.get('words', f'of the form {shape.pattern}')}", ""


def _number_violations(value: int, shape: shapes.IntType, key: Key) -> Iterator[Violation]:
    low, high = shape.ge, shape.le
    if (low is not None and value < low) or (high is not None and value > high):
        yield key, f"{value} is not " + (f"at least {low}" if high is None else f"in {low} to {high}"), ""
