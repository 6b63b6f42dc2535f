"""Locked Debian packages, and where to get them: the host's own Debian sources with the suite replaced."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import procs, store
from pipeline.core.errors import HostError, TandemError
from pipeline.core.log import Log

POCKETS = ("", "-updates", "-security")
FAMILY = ("stable", "oldstable", "oldoldstable", "testing")  # suites by rank, as sources may name them


@dataclass(frozen=True, order=True)
class Deb:
    """One binary package: its SHA-256, its size in bytes, and its path below a mirror's root."""

    name: str
    version: str
    arch: str
    sha256: str
    size: int
    path: str

    @property
    def file(self) -> str:
        """The last part of its path, for messages."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Source:
    """A mirror's root, and the suite to be read from it, as in trixie-security."""

    uri: str
    suite: str


def mirrors(suite: str) -> tuple[Source, ...]:
    """The sources of `suite`, made from the host's own Debian sources. Raises HostError if it has none."""
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    text = procs.capture(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], inherit=procs.NETWORK)
    found = derive(text, suite, _codename())
    if not found:
        raise HostError(
            "apt on this machine has no Debian source to take packages from",
            hint="have a `deb … main` or .sources entry of Debian itself below /etc/apt",
        )
    return found


def derive(targets: str, suite: str, codename: str) -> tuple[Source, ...]:
    """Sources of `suite` out of lines "uri|suite|component|origin"; one a pocket, Debian's own if apt knows it.

    The origin is empty as long as apt has read no lists. `codename` is the host's own suite.
    """
    best: dict[str, tuple[int, str]] = {}
    for line in targets.splitlines():
        uri, release, component, origin = (*line.split("|"), "", "", "")[:4]
        base, pocket = _split(release)
        if component != "main" or pocket is None or base not in {codename, suite, *FAMILY}:
            continue
        if origin not in {"", "Debian"}:
            continue
        rank = (2 if origin else 0) + ("debian" in uri)
        if rank > best.get(pocket, (-1, ""))[0]:
            best[pocket] = (rank, uri if uri.endswith("/") else uri + "/")
    if "" not in best:
        return ()
    return tuple(Source(best[pocket][1], suite + pocket) for pocket in POCKETS if pocket in best)


def _split(release: str) -> tuple[str, str | None]:
    base, dash, rest = release.partition("-")
    pocket = dash + rest
    return base, pocket if pocket in POCKETS else None


def _codename() -> str:
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    return "stable"


def items(debs: Iterable[Deb], sources: Sequence[Source]) -> list[store.Download]:
    """What store.fetch_all() wants; the security mirror's paths start with pool/updates."""
    roots = list(dict.fromkeys(source.uri for source in sources))
    back = roots[::-1]
    return [
        store.Download(
            f"{deb.name} {deb.version} ({deb.arch})",
            tuple(uri + deb.path for uri in (back if deb.path.startswith("pool/updates/") else roots)),
            deb.sha256,
            deb.size,
        )
        for deb in debs
    ]


def fetch(debs: Sequence[Deb], suite: str, log: Log, *, image: str, title: str) -> dict[str, Path]:
    """Every .deb, from the store or a mirror, by SHA-256.

    Raises TandemError that names a package that is in neither place, with the re-lock of that one package.
    """
    sources = mirrors(suite) if any(store.stored_file(deb.sha256) is None for deb in debs) else ()
    try:
        return store.fetch_all(items(debs, sources), log, title=title, proxies=proxies())
    except store.MissingFileError as error:
        name = error.item.name.split(" ", 1)[0]
        raise TandemError(
            f"lockfiles/{image}.debs.txt: {error}",
            hint=f"mirrors drop old versions: `TANDEM_LOCK=upgrade:{name} ./doitw lock:{image}` locks this one anew",
        ) from error


def proxies() -> dict[str, str] | None:
    """The proxies of apt's configuration by scheme, or None: then the environment's hold."""
    text = procs.capture(["apt-config", "dump", "--format", "%F %v%n"], inherit=procs.NETWORK)
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"Acquire::(https?)::Proxy (\S+)", line, re.IGNORECASE)
        if match:
            found[match[1].lower()] = match[2]
    return {scheme: url for scheme, url in found.items() if url != "DIRECT"} if found else None


def version() -> str:
    """apt's version."""
    return procs.capture(["apt-get", "--version"]).split()[1]
