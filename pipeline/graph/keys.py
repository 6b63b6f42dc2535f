"""How the graph spells what it keeps: JSON values that are hashed, and the folder of a task."""

import json

from pipeline.graph.task import Json


def canonical_json(value: Json) -> str:
    """One spelling of a JSON value: keys sorted, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def folder_name(task: str) -> str:
    """The name of a task's folder below artifacts/: `build:cpu` is `build-cpu`."""
    return task.replace(":", "-", 1).replace(":", "+").replace("/", "-")
