"""Locks of Tandem's own services: Debian packages for machines of every architecture, in one file."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pipeline.core import platforms
from pipeline.core.errors import ConfigError, HostError
from pipeline.core.files import write_whole
from pipeline.core.log import Log

if TYPE_CHECKING:
    from pipeline.lock.debs import Deb

ARCHITECTURES = ("amd64", "arm64")


class ServicePackages(Struct, frozen=True, kw_only=True):
    """The Debian packages of one service, with their dependencies."""

    name: str
    suite: str
    packages: Sequence[str]
    kept: Collection[str] = ()
    """The packages that are locked, of all that apt would install; empty for all."""

    @property
    def path(self) -> Path:
        """The lock's file below the root."""
        return Path(f"lockfiles/{self.name}.debs.txt")

    def lock(self, root: Path, mode: str, log: Log) -> "tuple[Deb, ...]":
        """Returns the lock for all architectures; makes it again if `mode` (TANDEM_LOCK) names it or packages in it.

        Raises ConfigError if there is no lock and `mode` is "frozen"; TandemError if the mirror does not answer.
        """
        from pipeline.lock.lock import names_to_upgrade

        names, old = names_to_upgrade(mode), self.read(root) if (root / self.path).exists() else ()
        if old and (names is None or (names and names.isdisjoint(deb.name for deb in old))):
            return old
        if mode == "frozen":
            raise ConfigError(f"{self.path}: there is no such lock", hint="restore it with `git checkout`")
        from pipeline.lock import lockfile
        from pipeline.lock.apt import private_apt

        kept = [deb for deb in old if names and deb.name not in names]
        packages: list[Deb] = []
        for arch in ARCHITECTURES:
            with private_apt(self.suite, arch, log) as apt:
                packages += [deb for deb in apt.resolve(self.packages, kept) if not self.kept or deb.name in self.kept]
        # A package for all architectures is found once for each.
        write_whole(root / self.path, lockfile.format_debs(set(packages)))
        return self.read(root)

    def read(self, root: Path) -> "tuple[Deb, ...]":
        """Returns the committed lock. Raises ConfigError if it is missing, or not a lock."""
        from pipeline.lock import lockfile

        try:
            return lockfile.parse_debs((root / self.path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: not a lock of packages: {error}", hint="restore it with `git checkout`"
            ) from error

    def of_this_machine(self, locked: "Sequence[Deb]", *, hint: str) -> "list[Deb]":
        """Returns the packages for this machine's architecture. Raises HostError with the hint if there are none."""
        arch = platforms.this_architecture()
        if not any(deb.arch == arch for deb in locked):
            raise HostError(f"{self.path}: nothing is locked for {arch}", hint=hint)
        return [deb for deb in locked if deb.arch in (arch, "all")]


_SERVER = ("docker-registry", "libc6")
REGISTRY = ServicePackages(name="registry", suite="trixie", packages=_SERVER, kept=_SERVER)
LAB = ServicePackages(
    name="lab",
    suite="trixie",
    packages=(
        *("base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "dash", "diffutils", "findutils"),
        *("grep", "gzip", "hostname", "libc-bin", "login", "mawk", "ncurses-base", "netbase", "procps", "sed", "tar"),
        *("util-linux", "containerd", "docker-cli", "docker.io", "runc", "iptables", "iproute2", "openssh-client"),
        *("openssh-server", "socat"),
    ),
)
