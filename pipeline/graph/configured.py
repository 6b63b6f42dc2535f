"""How tasks follow from files: told by the project, so that an edit of these files can be told from what it changes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pipeline.graph.graph import Graph


class Configuration(Struct, frozen=True, kw_only=True):
    """Where a graph's parameters come from.

    `paths` are the files and folders below the checkout that hold them; `graph` makes the graph of another folder
    that has (at least) these, and raises ConfigError if they are wrong.
    """

    paths: tuple[str, ...]
    graph: "Callable[[Path], Graph]"
