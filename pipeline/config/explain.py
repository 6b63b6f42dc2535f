"""Where a value does not fit its model, in a person's words: the slow walk after msgspec has refused it."""

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect as shapes

from pipeline.config.rules import Fault, Key
from pipeline.core.suggest import nearest

_KINDS: dict[type[Any], tuple[type[Any], str]] = {
    shapes.StrType: (str, "text"),
    shapes.IntType: (int, "a whole number"),
    shapes.BoolType: (bool, "true or false"),
    shapes.StructType: (dict, "a mapping"),
    shapes.DictType: (dict, "a mapping"),
    shapes.VarTupleType: (list, "a list"),
}
_CHOICE = re.compile(r"\^(?P<before>[\w/]*)\((?P<words>\w+(\|\w+)+)\)\$")
_SHOWN = 120
_SCALARS = (int, float, dt.date)


def faults(value: Any, model: type[Any]) -> Iterator[Fault]:
    """Every fault of `value` (plain YAML data) against a msgspec model."""
    yield from _faults(value, shapes.type_info(model), (), {})


def _faults(value: Any, shape: Any, key: Key, about: Mapping[str, Any]) -> Iterator[Fault]:
    """`about` is what the model says of the value besides its type: `words` for what fits."""
    if isinstance(shape, shapes.Metadata):
        yield from _faults(value, shape.type, key, shape.extra or {})
        return
    if isinstance(shape, shapes.UnionType):
        if value is not None:
            inner = next(i for i in shape.types if not isinstance(i, shapes.NoneType))
            yield from _faults(value, inner, key, about)
        return
    kind, words = _KINDS[type(shape)]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield key, f"{_shown(value)} is not {words}", _quoting(value, kind)
    elif isinstance(shape, shapes.StructType):
        yield from _struct(value, shape, key)
    elif isinstance(shape, shapes.DictType):
        for name, inner in value.items():
            yield from _faults(name, shape.key_type, (*key, str(name)), {})
            yield from _faults(inner, shape.value_type, (*key, str(name)), {})
    elif isinstance(shape, shapes.VarTupleType):
        yield from _list(value, shape, key)
    elif isinstance(shape, shapes.StrType):
        yield from _text(value, shape, key, about)
    elif isinstance(shape, shapes.IntType):
        yield from _number(value, shape, key)


def _shown(value: Any) -> str:
    """A value in YAML's words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = str(value) if isinstance(value, _SCALARS) else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _quoting(value: Any, kind: type[Any]) -> str:
    if value is None:
        return "what is left empty is null: give a value, or leave the key out"
    if kind is str and isinstance(value, _SCALARS):
        return 'put it in quotes: "…"'
    return "leave out the quotes" if kind is int and isinstance(value, str) and value.isdecimal() else ""


def _struct(value: dict[Any, Any], shape: shapes.StructType, key: Key) -> Iterator[Fault]:
    fields = {field.encode_name: field for field in shape.fields}
    for name in value:
        if name not in fields:
            yield (*key, str(name)), "unknown key", nearest(str(name), fields)
    for name, field in fields.items():
        if name in value:
            yield from _faults(value[name], field.type, (*key, name), {})
        elif field.required:
            more = field.type.extra_json_schema if isinstance(field.type, shapes.Metadata) else None
            meaning = (more or {}).get("description", "")
            yield key, f"the key {name!r} is missing", f"add {name}:" + (f" ({meaning})" if meaning else "")


def _list(value: list[Any], shape: shapes.VarTupleType, key: Key) -> Iterator[Fault]:
    if len(value) < (shape.min_length or 0):
        yield key, "must not be empty", f"at least {shape.min_length} entry is needed"
    for i, inner in enumerate(value):
        yield from _faults(inner, shape.item_type, (*key, i), {})


def _text(value: str, shape: shapes.StrType, key: Key, about: Mapping[str, Any]) -> Iterator[Fault]:
    fits = shape.pattern is None or re.search(shape.pattern, value)
    if fits and len(value) <= (shape.max_length or len(value)):
        return
    if choice := _CHOICE.fullmatch(shape.pattern or ""):
        words = [choice["before"] + word for word in choice["words"].split("|")]
        yield key, f"{_shown(value)} is not one of {', '.join(words)}", nearest(value, words)
    else:
        yield key, f"{_shown(value)} is not {about.get('words', f'of the form {shape.pattern}')}", ""


def _number(value: int, shape: shapes.IntType, key: Key) -> Iterator[Fault]:
    low, high = shape.ge, shape.le
    if (low is not None and value < low) or (high is not None and value > high):
        yield key, f"{value} is not " + (f"at least {low}" if high is None else f"in {low} to {high}"), ""
