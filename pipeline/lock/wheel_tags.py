"""Whether a wheel fits a target: architecture, interpreter and glibc, by the tags in its file name."""

from dataclasses import dataclass
from functools import cached_property

from pipeline.core import platforms

OLDEST = {"arm64": 17, "amd64": 5}  # minor version of the first glibc 2 that manylinux knows for the architecture
LEGACY = {17: "2014", 12: "2010", 5: "1"}


@dataclass(frozen=True)
class Target:
    """Where wheels will run: Debian's name of the architecture, the Python version, glibc 2's minor version."""

    arch: str
    python: str
    glibc: int

    @property
    def machine(self) -> str:
        """The architecture as the kernel and Python call it."""
        return platforms.MACHINES[self.arch]

    @property
    def words(self) -> str:
        """The target for people."""
        return f"{self.machine}, Python {self.python}, glibc 2.{self.glibc}"

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Every tag that fits, with its rank: the lower, the better."""
        from packaging import tags

        major, minor = map(int, self.python.split("."))
        interpreter = f"cp{major}{minor}"
        platforms = list(_platforms(self))
        every = [
            *tags.cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
            *tags.compatible_tags((major, minor), interpreter, platforms),
        ]
        return {str(tag): rank for rank, tag in reversed(list(enumerate(every)))}

    def rank(self, file: str) -> int | None:
        """How well a wheel of this file name fits (lower is better), or None if it does not or is no wheel."""
        from packaging.utils import InvalidWheelFilename, parse_wheel_filename

        try:
            _, _, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            return None
        return min((self.ranks[str(tag)] for tag in tags if str(tag) in self.ranks), default=None)


def _platforms(target: Target) -> list[str]:
    found = []
    for minor in range(target.glibc, OLDEST[target.arch] - 1, -1):
        found.append(f"manylinux_2_{minor}_{target.machine}")
        if minor in LEGACY:
            found.append(f"manylinux{LEGACY[minor]}_{target.machine}")
    return [*found, f"linux_{target.machine}"]
