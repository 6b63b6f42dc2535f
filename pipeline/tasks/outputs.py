"""Structs as the plain JSON that inputs and records keep, and back: the fields of the one are the keys of the other."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from pipeline.graph.task import Json, Outputs

Result = TypeVar("Result", bound=msgspec.Struct)


def to_outputs(struct: msgspec.Struct) -> Outputs:
    """Returns a stage's result, or a part of the configuration, as plain JSON."""
    # Not msgspec.to_builtins(): that leaves tuples, which are not what a record is read as.
    outputs: Outputs = msgspec.json.decode(msgspec.json.encode(struct))
    return outputs


def from_outputs(outputs: Mapping[str, Json], kind: type[Result]) -> Result:
    """Returns the result that a record keeps. Raises ValueError if another version of the stage recorded it."""
    return msgspec.convert(outputs, kind)
