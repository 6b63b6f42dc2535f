"""Builds the project's graph: every task of the configuration, the tools that decide bytes, and the default tasks."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pipeline.config import loader
from pipeline.config.loader import Config
from pipeline.core import platforms
from pipeline.core.errors import HostError
from pipeline.graph.graph import Configuration, Graph
from pipeline.graph.task import Task
from pipeline.graph.tools import identity_of_program
from pipeline.host import endpoint, engine, needs
from pipeline.tasks import claims, clusters, images


def load_graph(root: Path) -> Graph:
    """Returns the graph of a checkout. Raises ConfigError."""
    graph = Graph(root)
    return _filled(graph, loader.load_config(root, graph.cache))


def build_graph(config: Config) -> Graph:
    """Returns the graph of a configuration that has been read."""
    return _filled(Graph(config.root), config)


def _filled(graph: Graph, config: Config) -> Graph:
    claims.register(graph.world)
    _register_tools(graph)
    target = config.pipeline.registry
    if target.records != "off":
        from pipeline.registry import records

        may_write = target.records == "push"
        graph.share = records.RecordStore(target.address, f"{target.repository}/records", may_write=may_write)
    default = config.pipeline.default
    for name, image in config.images.items():
        _add(graph, images.image_tasks(config, name, image), name, default=config.cluster(default).image)
    graph.add(*clusters.shared_tasks(config))
    for name, cluster in config.pipeline.clusters.items():
        _add(graph, clusters.cluster_tasks(config, name, cluster), name, default=default)
    graph.configuration = Configuration(
        paths=(loader.PIPELINE_FILE, loader.LOCAL_FILE, loader.IMAGES_FOLDER), graph=load_graph
    )
    return graph


def _add(graph: Graph, tasks: Iterable[Task], name: str, *, default: str) -> None:
    """Add the tasks of an image or a cluster; for the default one, the kind alone means its task."""
    for task in tasks:
        graph.add(task)
        kind, _, subject = task.name.partition(":")
        if subject == name == default:
            graph.defaults[kind] = task.name


def _register_tools(graph: Graph) -> None:
    graph.tools.register("engine", _engine)
    graph.tools.register(
        "buildx",
        lambda: identity_of_program(str(endpoint.buildx_plugin() or "docker-buildx"), ("version",), graph.cache)(),
    )
    graph.tools.register("uv", identity_of_program(str(Path(sys.prefix) / "bin" / "uv"), ("--version",), graph.cache))
    for platform in platforms.PLATFORMS:
        graph.tools.register(f"emulator {platform}", partial(_emulator, platform, graph))


def _emulator(platform: str, graph: Graph) -> str:
    program, _ = needs.registered_emulator(platform)
    return identity_of_program(program, ("--version",), graph.cache)() if program else "none"


def _engine() -> str:
    """Return the engine's version, which decides BuildKit's: Debian's BuildKit calls itself v0.0.0+unknown."""
    version = engine.get("local", "/version")
    if version is None:
        raise HostError("the Docker engine does not say its version", hint="./doitw host")
    return f"{version['Version']} {version['Os']}/{version['Arch']}"
