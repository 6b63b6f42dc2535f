"""The selection of a cluster, and its containers, for all commands about clusters."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.cluster.nodes import ContainerState, container_state
from pipeline.config import loader
from pipeline.config.models import Node
from pipeline.config.rules import REFERENCE_SUFFIX
from pipeline.core.errors import ConfigError, TandemError
from pipeline.host import engine
from pipeline.host.engine import LABEL

if TYPE_CHECKING:
    from docker import DockerClient

MARKER = "pipeline.yaml"
T = TypeVar("T")


@dataclass(frozen=True)
class ClusterSelection:
    """The cluster that a command is about. `known` are the names of all clusters in pipeline.yaml.

    A cluster that pipeline.yaml does not have (any more) has no nodes. `unknown` is the error to raise if none of
    the engines has a container of it.
    """

    name: str
    nodes: tuple[Node, ...]
    engines: tuple[str, ...]
    known: frozenset[str]
    unknown: ConfigError | None = None

    @property
    def names(self) -> tuple[str, str]:
        """Returns the names in its containers' labels: its own, and that of a killed reference."""
        return self.name, self.name + REFERENCE_SUFFIX


def checkout_root() -> Path:
    """Returns the checkout that the working folder lies in. Raises ConfigError."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / MARKER).is_file():
            return folder
    raise ConfigError(f"no {MARKER} in {here} or above it")


def check_word_count(words: list[str], command: str, *, most: int) -> list[str]:
    """Returns the words after the command's name. Raises ConfigError if there are more than `most`."""
    if len(words) > most:
        raise ConfigError(f"doit {command} takes no {words[most]!r} after {words[0]!r}", hint=f"./doitw help {command}")
    return words


def select_cluster(cluster: str | None) -> ClusterSelection:
    """Returns the cluster of that name, or the default one. Raises ConfigError if the configuration is wrong."""
    loaded = loader.load_config(checkout_root())
    clusters = loaded.pipeline.clusters
    name = cluster or loaded.pipeline.default
    try:
        nodes, unknown = loaded.cluster(name).nodes, None
        engines = {node.endpoint for node in nodes}
    except ConfigError as error:
        # It may have been renamed: then its machines are among those of the others.
        nodes, unknown = (), error
        engines = {"local"} | {node.endpoint for other in clusters.values() for node in other.nodes}
    return ClusterSelection(name, nodes, tuple(sorted(engines)), frozenset(clusters), unknown)


def on_each_engine(selection: ClusterSelection, act: Callable[["DockerClient"], list[T]]) -> dict[str, list[T]]:
    """Calls `act` with each of the cluster's engines; returns the results by endpoint.

    Raises HostError if an engine does not answer; for a cluster that pipeline.yaml does not have, that is only noted.
    Raises ConfigError for an unknown cluster without any container.
    """
    results: dict[str, list[T]] = {}
    for endpoint in selection.engines:
        try:
            with engine.session(endpoint) as client:
                results[endpoint] = act(client)
        except TandemError as error:
            if selection.unknown is None:
                raise
            print(f"note: not looked for there: {error}", file=sys.stderr)
    if selection.unknown is not None and not any(results.values()):
        raise selection.unknown
    return results


def find_containers(selection: ClusterSelection) -> list[tuple[str, ContainerState]]:
    """Returns every container of the cluster with its endpoint, in the order of the ranks.

    Containers of a killed reference come last. Raises what on_each_engine() raises.
    """

    def containers(client: "DockerClient") -> list[ContainerState]:
        listed = []
        for name in selection.names:
            filters: dict[str, str | list[str] | bool] = {"label": [f"{LABEL}=node", f"{LABEL}.cluster={name}"]}
            listed += client.containers.list(all=True, filters=filters, ignore_removed=True)
        return [container_state(container.attrs) for container in listed]

    located = [
        (endpoint, state) for endpoint, states in on_each_engine(selection, containers).items() for state in states
    ]
    return sorted(
        located, key=lambda pair: (not is_node(selection, pair[1]), int(pair[1].labels.get(f"{LABEL}.rank", "0")))
    )


def is_node(selection: ClusterSelection, state: ContainerState) -> bool:
    """Returns whether a container is a node of the cluster, not of its reference."""
    return state.labels.get(f"{LABEL}.cluster") == selection.name


def count_unknown_clusters(selection: ClusterSelection) -> Mapping[str, int]:
    """Returns the number of containers in this machine's engine for each cluster that pipeline.yaml does not have."""
    filters = {"label": f"{LABEL}=node"}
    try:
        with engine.session("local") as client:
            listed = client.api.containers(all=True, filters=filters)
    except TandemError:
        return {}  # where nothing of a cluster runs here, an engine need not be here either
    labels = [container.get("Labels") or {} for container in listed]
    count = Counter(str(each.get(f"{LABEL}.cluster", "")).removesuffix(REFERENCE_SUFFIX) for each in labels)
    return {name: count[name] for name in sorted(count) if name and name not in selection.known}
