"""The pipeline's table of contents: one function a kind of task, in the order in which they run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.graph.run.doit_adapter import errors_for_doit, to_doit
from pipeline.tasks import project

with errors_for_doit():
    GRAPH = project.load_graph(Path(__file__).parent)
DOIT_CONFIG = {"default_tasks": ["deploy"]}
Tasks = Iterator[dict[str, Any]]


def task_lock() -> Tasks:
    """Resolve what an image asks for to versions and hashes, or check that its lock answers."""
    yield from to_doit(GRAPH, "lock")


def task_base() -> Tasks:
    """Provide the base of an image: a root filesystem from locked Debian packages, or another image."""
    yield from to_doit(GRAPH, "base")


def task_wheels() -> Tasks:
    """Install the locked wheels of an image for its platform."""
    yield from to_doit(GRAPH, "wheels")


def task_build() -> Tasks:
    """Build an image: base, wheels and its own files; one digest."""
    yield from to_doit(GRAPH, "build")


def task_smoke() -> Tasks:
    """Check what an image promises, in containers of its platform; and (…:launcher) under launchers of every era."""
    yield from to_doit(GRAPH, "smoke")


def task_registry() -> Tasks:
    """Make sure that the registry of pipeline.yaml answers; start it if it is ours."""
    yield from to_doit(GRAPH, "registry")


def task_push() -> Tasks:
    """Push an image that passed smoke to the registry."""
    yield from to_doit(GRAPH, "push")


def task_model() -> Tasks:
    """Make the tiny model that a cluster without weights of its own serves."""
    yield from to_doit(GRAPH, "model")


def task_reference() -> Tasks:
    """Ask one rank of an image for the completion that a cluster of it must give."""
    yield from to_doit(GRAPH, "reference")


def task_deploy() -> Tasks:
    """Run a cluster: one tensor-parallel engine over its nodes that answers."""
    yield from to_doit(GRAPH, "deploy")
