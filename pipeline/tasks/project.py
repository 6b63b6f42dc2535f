"""The project's graph: every task of the configuration, the tools that decide bytes, and what a bare kind means."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pipeline.config import loader as reader
from pipeline.config.loader import Config
from pipeline.core import platforms
from pipeline.core.errors import HostError
from pipeline.graph.graph import Configuration, Graph
from pipeline.graph.task import Task
from pipeline.graph.tools import identity_of_program
from pipeline.host import endpoint, engine, needs
from pipeline.tasks import claims, clusters, images


def of(root: Path) -> Graph:
    """All tasks of a checkout. Raises ConfigError."""
    made = Graph(root)
    return _filled(made, reader.load_config(root, made.cache))


def graph(config: Config) -> Graph:
    """All tasks of a configuration."""
    return _filled(Graph(config.root), config)


def _filled(made: Graph, config: Config) -> Graph:
    claims.register(made.world)
    _register_tools(made)
    target = config.pipeline.registry
    if target.records != "off":
        from pipeline.registry import records

        may_write = target.records == "push"
        made.share = records.RecordStore(target.address, f"{target.repository}/records", may_write=may_write)
    default = config.pipeline.default
    for name, image in config.images.items():
        _add(made, images.tasks(config, name, image), name, default=config.cluster(default).image)
    made.add(*clusters.shared(config))
    for name, cluster in config.pipeline.clusters.items():
        _add(made, clusters.tasks(config, name, cluster), name, default=default)
    made.configuration = Configuration(paths=(reader.PIPELINE_FILE, reader.LOCAL_FILE, reader.IMAGES_FOLDER), graph=of)
    return made


def _add(made: Graph, tasks: Iterable[Task], name: str, *, default: str) -> None:
    """Add the tasks of an image or a cluster; those of the default one are what their kind alone means."""
    for task in tasks:
        made.add(task)
        kind, _, subject = task.name.partition(":")
        if subject == name == default:
            made.defaults[kind] = task.name


def _register_tools(made: Graph) -> None:
    made.tools.register("engine", _engine)
    made.tools.register(
        "buildx",
        lambda: identity_of_program(str(endpoint.buildx_plugin() or "docker-buildx"), ("version",), made.cache)(),
    )
    made.tools.register("uv", identity_of_program(str(Path(sys.prefix) / "bin" / "uv"), ("--version",), made.cache))
    for platform in platforms.PLATFORMS:
        made.tools.register(f"emulator {platform}", partial(_emulator, platform, made))


def _emulator(platform: str, made: Graph) -> str:
    program, _ = needs.registered_emulator(platform)
    return identity_of_program(program, ("--version",), made.cache)() if program else "none"


def _engine() -> str:
    """The engine brings BuildKit along, whose own version string says nothing (Debian's build: v0.0.0+unknown)."""
    found = engine.get("local", "/version")
    if found is None:
        raise HostError("the Docker engine does not say its version", hint="./doitw host")
    return f"{found['Version']} {found['Os']}/{found['Arch']}"
