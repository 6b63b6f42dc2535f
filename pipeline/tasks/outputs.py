"""Stage results as the outputs that records keep, and back: the fields of the one are the keys of the other."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from pipeline.graph.task import Json, Outputs

Result = TypeVar("Result", bound=msgspec.Struct)


def to_outputs(result: msgspec.Struct) -> Outputs:
    """Returns a stage's result as plain JSON."""
    outputs: Outputs = msgspec.to_builtins(result)
    return outputs


def from_outputs(outputs: Mapping[str, Json], kind: type[Result]) -> Result:
    """Returns the result that a record keeps. Raises ValueError if another version of the stage recorded it."""
    return msgspec.convert(outputs, kind)
