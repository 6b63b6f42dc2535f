"""A pushed image on the lab's two machines, driven as launch-cluster.sh of every era drives it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config.models import Image
from pipeline.core import procs
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log, step
from pipeline.lab import lab
from pipeline.lab.lab import Machine
from pipeline.lab.machines import REGISTRY
from pipeline.smoke import eras
from pipeline.smoke.era_machines import ClusterMachine
from pipeline.smoke.report import Smoked

PULL_TIMEOUT_S = 1800


def smoke_launcher(
    root: Path,
    digest: str,
    name: str,
    image: Image,
    address: str,
    repository: str,
    points: Mapping[str, Sequence[str]],
    log: Log,
) -> Smoked:
    """Checks the image that the registry at `address` has as `repository`@`digest`.

    `points` are the faults that `smoke` found for each point of the launcher contract. Uses the lab that is up, or
    brings one up and takes it down again. Raises what check_eras() and lab.lab_in_use() raise, and ConfigError for a
    lab of one machine.
    """
    with lab.lab_in_use(root, "", log, registry=address) as lab_machines:
        if len(lab_machines) < eras.NODES:
            raise ConfigError("the lab has one machine, and a cluster needs two", hint="./doitw lab up --machines 2")
        nodes = lab_machines[: eras.NODES]
        reference = f"{REGISTRY}/{repository}@{digest}"
        with step(log, f"both machines pull {reference}"):
            _pull(root, nodes, reference, log)
        machines = [
            ClusterMachine(name=node.name, docker=_docker(node), address=node.address, image=reference)
            for node in nodes
        ]
        env = lab.environment(root)
        return eras.check_eras(
            reference, name, image, machines, env, log, points=points, substitutions=lab.SUBSTITUTIONS
        )


def _docker(machine: Machine) -> tuple[str, ...]:
    return ("docker", "--host", machine.endpoint)


def _pull(root: Path, machines: Sequence[Machine], reference: str, log: Log) -> None:
    env = lab.environment(root)

    def pull(machine: Machine) -> None:
        argv = [*_docker(machine), "pull", "--quiet", reference]
        procs.run(argv, log=log, inherit=procs.DOCKER, env=env, timeout_s=PULL_TIMEOUT_S)

    with ThreadPoolExecutor(len(machines)) as pool:
        list(pool.map(pull, machines))
