"""A pushed image on the lab's two machines, driven as launch-cluster.sh of every era drives it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config.models import Image
from pipeline.core import procs
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log, step
from pipeline.lab import lab
from pipeline.lab import machines as labengine
from pipeline.lab.lab import Machine
from pipeline.smoke import eras
from pipeline.smoke.era_machines import Endpoint
from pipeline.smoke.smoke import Smoked

PULL_WITHIN = 1800


def run(
    root: Path,
    digest: str,
    name: str,
    image: Image,
    address: str,
    repository: str,
    points: Mapping[str, Sequence[str]],
    log: Log,
) -> Smoked:
    """Check the image that the registry at `address` has as `repository`@`digest`.

    `points` are what `smoke` found for each point of the launcher contract. The lab that is up is used, or one is
    brought up and taken down again. Raises as eras.run() and lab.standing(), and ConfigError for a lab of one machine.
    """
    with lab.standing(root, "", log, registry=address) as machines:
        if len(machines) < eras.NODES:
            raise ConfigError("the lab has one machine, and a cluster needs two", hint="./doitw lab up --machines 2")
        nodes = machines[: eras.NODES]
        reference = f"{labengine.REGISTRY}/{repository}@{digest}"
        with step(log, f"both machines pull {reference}"):
            _pull(root, nodes, reference, log)
        endpoints = [
            Endpoint(name=one.name, docker=_docker(one), address=one.address, image=reference) for one in nodes
        ]
        environment = lab.environment(root)
        return eras.run(
            reference, name, image, endpoints, environment, log, points=points, substitutions=lab.SUBSTITUTIONS
        )


def _docker(machine: Machine) -> tuple[str, ...]:
    return ("docker", "--host", machine.endpoint)


def _pull(root: Path, machines: Sequence[Machine], reference: str, log: Log) -> None:
    environment = lab.environment(root)

    def one(machine: Machine) -> None:
        argv = [*_docker(machine), "pull", "--quiet", reference]
        procs.run(argv, log=log, hears=procs.DOCKER, env=environment, within=PULL_WITHIN)

    with ThreadPoolExecutor(len(machines)) as pool:
        list(pool.map(one, machines))
