"""What the commands about clusters share: which cluster is meant, and what runs of it where."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import cluster as clusters
from pipeline import config, engine
from pipeline.cluster import Found
from pipeline.engine import LABEL
from pipeline.errors import ConfigError, HostError, TandemError

if TYPE_CHECKING:
    from docker import DockerClient

    from pipeline.models import Cluster

MARKER = "pipeline.yaml"


def root() -> Path:
    """The checkout that the working folder lies in."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / MARKER).is_file():
            return folder
    raise ConfigError(f"no {MARKER} in {here} or above it")


def chosen(words: list[str], command: str, *, most: int) -> list[str]:
    """The words after the command's name. Raises ConfigError if there are more than `most`."""
    if len(words) > most:
        raise ConfigError(f"doit {command} takes no {words[most]!r} after {words[0]!r}", hint=f"doit help {command}")
    return words


def named(cluster: str | None) -> tuple[str, "Cluster"]:
    """The cluster of that name, or the default one. Raises ConfigError."""
    loaded = config.load(root())
    name = cluster or loaded.pipeline.default
    return name, loaded.cluster(name)


def engines(cluster: "Cluster") -> list[str]:
    """The endpoints of a cluster, each once."""
    return sorted({node.endpoint for node in cluster.nodes})


@contextmanager
def connected(endpoint: str, *, within: int = 600) -> Iterator["DockerClient"]:
    """A client of the endpoint's engine (`within`: s for a call); its failures become HostError and TandemError."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    client = engine.client(endpoint, within=within)
    try:
        yield client
    except DockerException as error:
        raise TandemError(f"{endpoint}: {getattr(error, 'explanation', None) or error}") from error
    except RequestException as error:
        raise HostError(f"{endpoint}: no Docker engine answers: {error}") from error
    finally:
        client.close()


def running(name: str, cluster: "Cluster") -> list[tuple[str, Found]]:
    """Every container of the cluster, in the order of its ranks, with the endpoint that it is on."""
    filters: dict[str, str | list[str] | bool] = {"label": [f"{LABEL}=node", f"{LABEL}.cluster={name}"]}
    there: list[tuple[str, Found]] = []
    for endpoint in engines(cluster):
        with connected(endpoint) as client:
            listed = client.containers.list(all=True, filters=filters, ignore_removed=True)
            there += [(endpoint, clusters.found(container.attrs)) for container in listed]
    return sorted(there, key=lambda pair: int(pair[1].labels.get(f"{LABEL}.rank", "0")))
