"""What a lock holds: one type for an image made from Debian packages, one for an image on top of another image."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from pipeline.foreign.facts import ImageFacts
from pipeline.lock import place
from pipeline.lock.debs import Deb
from pipeline.lock.place import Place
from pipeline.lock.resolver import Wheel

SUITES = {"3.11": "bookworm", "3.13": "trixie"}
"""The Debian suite that has each Python version."""


@dataclass(frozen=True, kw_only=True)
class CommonLock:
    """The part that both kinds of lock have."""

    name: str
    """The image's name."""
    request: dict[str, Any]
    """What image.yaml asked for when the lock was made, as request_of() returns it."""
    cutoff: str
    """The day as of which the index was asked, as in 2026-01-31."""
    epoch: int
    """SOURCE_DATE_EPOCH of the image, in seconds since 1970."""
    wheels: tuple[Wheel, ...]
    interpreter: tuple[Deb, ...]
    """The packages of a Python for the build machine, for each architecture; empty if no Debian suite has it."""
    tools: dict[str, str]
    """The versions of uv and apt that resolved the request."""

    @property
    def platform(self) -> str:
        """The target's platform, as in linux/arm64."""
        return str(self.request["platform"])

    @property
    def arch(self) -> str:
        """The target's architecture as Debian and Docker name it."""
        return self.platform.partition("/")[2]

    @property
    def versions(self) -> dict[str, str]:
        """Every distribution of the finished image: normalised name → version."""
        return {**self.inside, **{wheel.name: wheel.version for wheel in self.wheels}}

    @property
    @abstractmethod
    def python(self) -> str:
        """The version of the image's interpreter, as in 3.13."""

    @property
    @abstractmethod
    def suite(self) -> str:
        """The Debian suite that `interpreter` comes from, as in trixie; empty if there is none."""

    @property
    @abstractmethod
    def inside(self) -> dict[str, str]:
        """The distributions of the base image: normalised name → version."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """The folders in the image that Python packages are installed to."""

    @property
    @abstractmethod
    def pinned(self) -> frozenset[str]:
        """The names of all packages whose pins can move."""


@dataclass(frozen=True, kw_only=True)
class DebianLock(CommonLock):
    """The lock of an image made from Debian packages."""

    debs: tuple[Deb, ...]
    """The packages of the root filesystem."""

    @property
    def python(self) -> str:
        """The version that image.yaml asks for."""
        return str(self.request["python"])

    @property
    def suite(self) -> str:
        """The suite of the root filesystem."""
        return str(self.request["debian"])

    @property
    def inside(self) -> dict[str, str]:
        """Nothing: the image has no base image."""
        return {}

    @property
    def place(self) -> Place:
        """Debian's folders for what its packages do not bring."""
        return place.debian_place(self.python)

    @property
    def pinned(self) -> frozenset[str]:
        """The names of wheels and Debian packages."""
        return frozenset({wheel.name for wheel in self.wheels} | {deb.name for deb in self.debs})


@dataclass(frozen=True, kw_only=True)
class CombinedLock(CommonLock):
    """The lock of an image on top of another image."""

    base: str
    """The base image, as NAME@sha256:…."""
    facts: ImageFacts
    """What the base image holds."""

    @property
    def python(self) -> str:
        """The version of the base image's interpreter, without its patch level."""
        return self.facts.python.minor

    @property
    def suite(self) -> str:
        """The suite that has the same Python as the base image."""
        return SUITES.get(self.python, "")

    @property
    def inside(self) -> dict[str, str]:
        """The distributions of the base image; of two with the same name the one that Python imports."""
        # The first on the path wins.
        return {item.name: item.version for item in reversed(self.facts.distributions)}

    @property
    def place(self) -> Place:
        """The folders of the base image's interpreter."""
        python = self.facts.python
        site, scripts = python.site.strip("/"), python.scripts.strip("/")
        return Place(site, scripts.rpartition("/")[0], scripts, python.path)

    @property
    def pinned(self) -> frozenset[str]:
        """The names of the wheels that are added."""
        return frozenset(wheel.name for wheel in self.wheels)


Lock = DebianLock | CombinedLock
