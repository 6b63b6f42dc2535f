"""Locks of what is ours and no image.yaml describes: Debian packages alone, for both kinds of machine, in one file."""

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


class Wanted(Struct, frozen=True, kw_only=True):
    """What is locked: packages of a suite and all that they depend on, or of these only what `kept` names."""

    name: str
    suite: str
    packages: Sequence[str]
    kept: Collection[str] = ()

    @property
    def path(self) -> Path:
        """The lock's file below the root."""
        return Path(f"lockfiles/{self.name}.debs.txt")

    def lock(self, root: Path, mode: str, log: Log) -> "tuple[Deb, ...]":
        """The lock for all architectures; made anew if `mode` (TANDEM_LOCK) asks for it, or for packages in it.

        Raises ConfigError if it is not there and `mode` is "frozen".
        """
        from pipeline.lock.lock import upgraded

        names, old = upgraded(mode), self.read(root) if (root / self.path).exists() else ()
        if old and (names is None or (names and names.isdisjoint(deb.name for deb in old))):
            return old
        if mode == "frozen":
            raise ConfigError(f"{self.path}: there is no such lock", hint="restore it with `git checkout`")
        from pipeline.lock import apt as aptroot
        from pipeline.lock import lockfile

        kept = [deb for deb in old if names and deb.name not in names]
        found: list[Deb] = []
        for arch in ARCHITECTURES:
            with aptroot.private(self.suite, arch, log) as apt:
                found += [deb for deb in apt.resolve(self.packages, kept) if not self.kept or deb.name in self.kept]
        # A package for all architectures is found once for each.
        write_whole(root / self.path, lockfile.columns(set(found)))
        return self.read(root)

    def read(self, root: Path) -> "tuple[Deb, ...]":
        """The committed lock. Raises ConfigError if it is not there or not a lock."""
        from pipeline.lock import lockfile

        try:
            return lockfile.debs((root / self.path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: not a lock of packages: {error}", hint="restore it with `git checkout`"
            ) from error

    def of_this_machine(self, locked: "Sequence[Deb]", *, hint: str) -> "list[Deb]":
        """What is locked for this machine's architecture. Raises HostError with the hint if that is nothing."""

        own = platforms.this_architecture()
        if not any(deb.arch == own for deb in locked):
            raise HostError(f"{self.path}: nothing is locked for {own}", hint=hint)
        return [deb for deb in locked if deb.arch in (own, "all")]


_SERVER = ("docker-registry", "libc6")
REGISTRY = Wanted(name="registry", suite="trixie", packages=_SERVER, kept=_SERVER)
LAB = Wanted(
    name="lab",
    suite="trixie",
    packages=(
        *("base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "dash", "diffutils", "findutils"),
        *("grep", "gzip", "hostname", "libc-bin", "login", "mawk", "ncurses-base", "netbase", "procps", "sed", "tar"),
        *("util-linux", "containerd", "docker-cli", "docker.io", "runc", "iptables", "iproute2", "openssh-client"),
        *("openssh-server", "socat"),
    ),
)
