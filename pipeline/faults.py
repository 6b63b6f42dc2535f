"""Where a value does not fit its model, in a person's words: the slow walk after msgspec has refused it."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect as shapes

from pipeline.nearest import nearest

Key = tuple[str | int, ...]
Fault = tuple[Key, str, str]
"""The key, what is wrong there, and a hint."""
_KINDS: dict[type[Any], tuple[type[Any], str]] = {
    shapes.StrType: (str, "text"),
    shapes.IntType: (int, "a whole number"),
    shapes.BoolType: (bool, "true or false"),
    shapes.StructType: (dict, "a mapping"),
    shapes.DictType: (dict, "a mapping"),
    shapes.VarTupleType: (list, "a list"),
}


def faults(value: Any, model: type[Any]) -> Iterator[Fault]:
    """Every fault of `value` (plain YAML data) against a msgspec model."""
    yield from _faults(value, shapes.type_info(model), ())


def _faults(value: Any, shape: Any, key: Key) -> Iterator[Fault]:
    if isinstance(shape, shapes.Metadata):
        shape = shape.type
    if isinstance(shape, shapes.UnionType):
        if value is not None:
            yield from _faults(value, next(i for i in shape.types if not isinstance(i, shapes.NoneType)), key)
        return
    kind, words = _KINDS[type(shape)]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        quote = 'put it in quotes: "…"' if kind is str and isinstance(value, int | float) else ""
        yield key, f"{value!r} is not {words}", quote
    elif isinstance(shape, shapes.StructType):
        yield from _struct(value, shape, key)
    elif isinstance(shape, shapes.DictType):
        for name, inner in value.items():
            yield from _faults(name, shape.key_type, (*key, name))
            yield from _faults(inner, shape.value_type, (*key, name))
    elif isinstance(shape, shapes.VarTupleType):
        if len(value) < (shape.min_length or 0):
            yield key, "must not be empty", ""
        for i, inner in enumerate(value):
            yield from _faults(inner, shape.item_type, (*key, i))
    else:
        yield from _leaf(value, shape, key)


def _struct(value: dict[Any, Any], shape: shapes.StructType, key: Key) -> Iterator[Fault]:
    fields = {field.encode_name: field for field in shape.fields}
    for name in value:
        if name not in fields:
            yield (*key, str(name)), "unknown key", nearest(str(name), fields)
    for name, field in fields.items():
        if name in value:
            yield from _faults(value[name], field.type, (*key, name))
        elif field.required:
            yield key, f"the key {name!r} is missing", ""


def _leaf(value: Any, shape: Any, key: Key) -> Iterator[Fault]:
    if isinstance(shape, shapes.StrType) and shape.pattern is not None and not re.search(shape.pattern, value):
        yield key, f"{value!r} does not fit {shape.pattern}", ""
    elif isinstance(shape, shapes.IntType):
        low, high = shape.ge, shape.le
        if (low is not None and value < low) or (high is not None and value > high):
            yield key, f"{value} is not in {low}..{'' if high is None else high}", ""
