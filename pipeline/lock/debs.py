"""Locked Debian packages; they are fetched from the host's own Debian sources, with the suite replaced."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import procs, redact, store
from pipeline.core.errors import HostError, TandemError
from pipeline.core.log import Log

POCKETS = ("", "-updates", "-security")
SUITES_BY_RANK = ("stable", "oldstable", "oldoldstable", "testing")
"""The names by rank that sources may use for a suite."""


@dataclass(frozen=True, order=True)
class Deb:
    """A locked binary package."""

    name: str
    version: str
    arch: str
    """Debian's name of the architecture, or "all"."""
    sha256: str
    """As hex."""
    size: int
    """In bytes."""
    path: str
    """The path below a mirror's root."""

    @property
    def file(self) -> str:
        """The file name, for messages."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class PackageSource:
    """A suite on a mirror."""

    uri: str
    """The mirror's root, with a slash at the end."""
    suite: str
    """With its pocket, as in trixie-security."""


def package_sources(suite: str) -> tuple[PackageSource, ...]:
    """Returns the sources of `suite`, made from the host's own Debian sources. Raises HostError if there are none."""
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    text = procs.capture(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], inherit=procs.NETWORK)
    sources = derive_sources(text, suite, _codename())
    if not sources:
        raise HostError(
            "apt on this machine has no Debian source to take packages from",
            hint="have a `deb … main` or .sources entry of Debian itself below /etc/apt",
        )
    return sources


def derive_sources(targets: str, suite: str, codename: str) -> tuple[PackageSource, ...]:
    """Returns sources of `suite` from lines "uri|suite|component|origin": one per pocket, Debian's own if apt knows it.

    The origin is empty if apt has not read any lists yet. `codename` is the host's own suite.
    """
    best: dict[str, tuple[int, str]] = {}
    redact.register_in(targets)
    for line in targets.splitlines():
        uri, release, component, origin = (*line.split("|"), "", "", "")[:4]
        base, pocket = _split(release)
        if component != "main" or pocket is None or base not in {codename, suite, *SUITES_BY_RANK}:
            continue
        if origin not in {"", "Debian"}:
            continue
        rank = (2 if origin else 0) + ("debian" in uri)
        if rank > best.get(pocket, (-1, ""))[0]:
            best[pocket] = (rank, uri if uri.endswith("/") else uri + "/")
    if "" not in best:
        return ()
    return tuple(PackageSource(best[pocket][1], suite + pocket) for pocket in POCKETS if pocket in best)


def _split(release: str) -> tuple[str, str | None]:
    base, dash, rest = release.partition("-")
    pocket = dash + rest
    return base, pocket if pocket in POCKETS else None


def _codename() -> str:
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    return "stable"


def store_items(debs: Iterable[Deb], sources: Sequence[PackageSource]) -> list[store.Download]:
    """Returns the packages as store.fetch_all() takes them; paths on the security mirror begin with pool/updates."""
    roots = list(dict.fromkeys(source.uri for source in sources))
    security_first = roots[::-1]
    return [
        store.Download(
            f"{deb.name} {deb.version} ({deb.arch})",
            tuple(uri + deb.path for uri in (security_first if deb.path.startswith("pool/updates/") else roots)),
            deb.sha256,
            deb.size,
        )
        for deb in debs
    ]


def fetch_debs(debs: Sequence[Deb], suite: str, log: Log, *, image: str, title: str) -> dict[str, Path]:
    """Fetches every package from the store or a mirror; returns the files by SHA-256.

    Raises TandemError that names a package which neither has, with the command that locks this one package again.
    """
    sources = package_sources(suite) if any(store.stored_file(deb.sha256) is None for deb in debs) else ()
    try:
        return store.fetch_all(store_items(debs, sources), log, title=title, proxies=apt_proxies())
    except store.MissingFileError as error:
        name = error.item.name.split(" ", 1)[0]
        raise TandemError(
            f"lockfiles/{image}.debs.txt: {error}",
            hint=f"mirrors drop old versions: `TANDEM_LOCK=upgrade:{name} ./doitw lock:{image}` locks this one again",
        ) from error


def apt_proxies() -> dict[str, str] | None:
    """Returns the proxies of apt's configuration by scheme; None if it has none, so that the environment's apply."""
    text = procs.capture(["apt-config", "dump", "--format", "%F %v%n"], inherit=procs.NETWORK)
    urls = {}
    for line in text.splitlines():
        match = re.fullmatch(r"Acquire::(https?)::Proxy (\S+)", line, re.IGNORECASE)
        if match:
            urls[match[1].lower()] = match[2]
    redact.register_in(urls)
    return {scheme: url for scheme, url in urls.items() if url != "DIRECT"} if urls else None


def apt_version() -> str:
    """Returns apt's version, which a lock records."""
    return procs.capture(["apt-get", "--version"]).split()[1]
