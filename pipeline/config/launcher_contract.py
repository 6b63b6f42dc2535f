"""The fourteen points of the launcher contract (2.6): what an image must satisfy under launchers of every era."""

from collections.abc import Iterable

PointFailure = tuple[int, str]
"""The number of the point that is not satisfied, and why."""
PORTS = (29501, 6379, 8265, 8000)
POINTS = {
    1: "for the platform of image.yaml, and on both machines under one Id",
    2: "ENTRYPOINT is none, or hands over to the command it is given",
    3: "root, HOME=/root and writable, bash and the core tools",
    4: "WORKDIR is writable, and run-cluster-node.sh in it does what launchers expect",
    5: "/workspace is there and writable",
    6: "ray, vllm, python3 and git are on PATH without a login shell",
    7: "ray[default], one Ray",
    8: "vllm is where mods patch it; git, curl, patch, and uv or pip",
    9: "the libraries of RDMA; earlyoom",
    10: "nothing that differs from node to node is in ENV",
    11: "nothing lies where launchers mount folders",
    12: "`vllm serve` takes the options of its own multi-node executor",
    13: "`ray start` takes the options of every era",
    14: f"ports {', '.join(map(str, PORTS))} are free on both machines",
}


def by_point(faults: Iterable[PointFailure]) -> dict[str, list[str]]:
    """Every point, by its number as text, with what is wrong there."""
    found: dict[str, list[str]] = {str(number): [] for number in POINTS}
    for number, words in faults:
        found[str(number)].append(words)
    return found
