"""The spelling of JSON values that are hashed, and of a task's folder."""

import json

from pipeline.graph.task import Json


def canonical_json(value: Json) -> str:
    """Returns one spelling of a JSON value: keys sorted, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def folder_name(task: str) -> str:
    """Returns the name of a task's folder below artifacts/: `build:cpu` is `build-cpu`."""
    return task.replace(":", "-", 1).replace(":", "+").replace("/", "-")
