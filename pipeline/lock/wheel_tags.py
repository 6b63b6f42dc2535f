"""Decides by the tags in its file name whether a wheel fits an architecture, a Python and a glibc."""

from dataclasses import dataclass
from functools import cached_property

from pipeline.core import platforms

OLDEST_GLIBC = {"arm64": 17, "amd64": 5}
"""The minor version of the first glibc 2 that manylinux has for the architecture."""
LEGACY_NAMES = {17: "2014", 12: "2010", 5: "1"}
"""The older names of manylinux_2_N, as in manylinux2014."""


@dataclass(frozen=True)
class WheelTarget:
    """The system that wheels will run on."""

    arch: str
    """Debian's name of the architecture, as in arm64."""
    python: str
    """The version, as in 3.13."""
    glibc: int
    """The minor version of its glibc 2."""

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
        """Every tag that fits → its rank; a lower one is better."""
        from packaging import tags

        major, minor = map(int, self.python.split("."))
        interpreter = f"cp{major}{minor}"
        platform_tags = _platform_tags(self)
        fitting = [
            *tags.cpython_tags((major, minor), abis=[interpreter], platforms=platform_tags),
            *tags.compatible_tags((major, minor), interpreter, platform_tags),
        ]
        return {str(tag): rank for rank, tag in reversed(list(enumerate(fitting)))}

    def rank(self, file: str) -> int | None:
        """Returns how well a wheel of this file name fits; lower is better, None is for a file that does not fit."""
        from packaging.utils import InvalidWheelFilename, parse_wheel_filename

        try:
            _, _, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            return None
        return min((self.ranks[str(tag)] for tag in tags if str(tag) in self.ranks), default=None)


def _platform_tags(target: WheelTarget) -> list[str]:
    names = []
    for minor in range(target.glibc, OLDEST_GLIBC[target.arch] - 1, -1):
        names.append(f"manylinux_2_{minor}_{target.machine}")
        if minor in LEGACY_NAMES:
            names.append(f"manylinux{LEGACY_NAMES[minor]}_{target.machine}")
    return [*names, f"linux_{target.machine}"]
