"""Debian packages of any architecture, resolved by apt itself in a private root: the host's apt state is not touched.

Mirrors, proxies and certificates are the host's own: its Debian sources with the suite replaced.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline import procs, store
from pipeline.errors import ConfigError, HostError, TandemError
from pipeline.log import Log

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
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
    text = procs.capture(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"])
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


def items(debs: Iterable[Deb], sources: Sequence[Source]) -> list[store.Item]:
    """What store.fetch_all() wants; the security mirror's paths start with pool/updates."""
    roots = list(dict.fromkeys(source.uri for source in sources))
    back = roots[::-1]
    return [
        store.Item(
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
    sources = mirrors(suite) if any(store.get(deb.sha256) is None for deb in debs) else ()
    try:
        return store.fetch_all(items(debs, sources), log, title=title, proxies=proxies())
    except store.MissingError as error:
        name = error.item.name.split(" ", 1)[0]
        raise TandemError(
            f"lockfiles/{image}.debs.txt: {error}",
            hint=f"mirrors drop old versions: `TANDEM_LOCK=upgrade:{name} ./doitw lock:{image}` locks this one anew",
        ) from error


def proxies() -> dict[str, str] | None:
    """The proxies of apt's configuration by scheme, or None: then the environment's hold."""
    text = procs.capture(["apt-config", "dump", "--format", "%F %v%n"])
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"Acquire::(https?)::Proxy (\S+)", line, re.IGNORECASE)
        if match:
            found[match[1].lower()] = match[2]
    return {scheme: url for scheme, url in found.items() if url != "DIRECT"} if found else None


class Apt:
    """apt with lists of one suite and several architectures, in a folder of its own."""

    def __init__(self, root: Path, sources: Sequence[Source], archs: Sequence[str], log: Log) -> None:
        self._root, self._archs, self._log = root, tuple(archs), log
        self._sources = tuple(sources)
        self._blocks: dict[str, dict[str, list[str]]] = {}
        for folder in ("state/lists/partial", "cache/archives/partial", "etc", "kept"):
            (root / folder).mkdir(parents=True)
        (root / "status").touch()
        (root / "preferences").touch()
        (root / "kept" / "Packages").touch()
        self._write_sources()
        host = procs.capture(["apt-config", "dump"])
        (root / "apt.conf").write_text(_conf(root, host), encoding="utf-8")
        self._update()

    def resolve(self, packages: Sequence[str], arch: str, pins: Iterable[Deb] = ()) -> tuple[Deb, ...]:
        """The packages and what they depend on (recommendations left out), sorted by name.

        `pins` are versions to keep if the suite or the store still has them. Raises ConfigError if a package
        is unknown or cannot be installed.
        """
        held = [deb for deb in pins if deb.arch in {arch, "all"}]
        known = self._versions((deb.name for deb in held), arch)
        lost = [deb for deb in held if (deb.name, deb.version) not in known and store.get(deb.sha256)]
        self._offer(lost)
        known = {**known, **{(deb.name, deb.version): deb for deb in lost}}
        lines = [
            f"Package: {deb.name}\nPin: version {deb.version}\nPin-Priority: 1001\n"
            for deb in held
            if (deb.name, deb.version) in known
        ]
        (self._root / "preferences").write_text("\n".join(lines), encoding="utf-8")
        try:
            text = self._apt("install", "--simulate", "--no-install-recommends", *packages, arch=arch)
        except procs.ProgramError as error:
            raise ConfigError(complaint(error.output, self._sources[0].suite, arch)) from error
        chosen = [
            (name.partition(":")[0], version) for name, version in re.findall(r"^Inst (\S+) \((\S+) ", text, re.M)
        ]
        known = {**self._versions((name for name, _ in chosen), arch), **known}
        return tuple(sorted(known[key] for key in chosen))

    def _apt(self, *words: str, arch: str, within: float = 300) -> str:
        options = [f"APT::Architecture={arch}", f"APT::Architectures={arch}"]
        options += [] if words[0] == "update" else [f"APT::Architectures::={arch}"]
        argv = ["apt-get", *(word for option in options for word in ("-o", option)), *words]
        return procs.capture(argv, env=self._env(), within=within)

    def _env(self) -> Mapping[str, str]:
        return {
            "APT_CONFIG": str(self._root / "apt.conf"),
            "LC_ALL": "C",
            "LANGUAGE": "",
            "DEBIAN_FRONTEND": "noninteractive",
        }

    def _write_sources(self) -> None:
        options = f"arch={','.join(self._archs)}" + (f" signed-by={KEYRING}" if KEYRING.is_file() else "")
        lines = [f"deb [{options}] {source.uri} {source.suite} main" for source in self._sources]
        lines.append(f"deb [trusted=yes arch={','.join(self._archs)}] file:{self._root}/kept ./")
        (self._root / "sources.list").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _update(self) -> None:
        words = " ".join(source.suite for source in self._sources)
        self._log.line(f"reading the package lists of {words} for {', '.join(self._archs)} …")
        try:
            self._apt("update", "--error-on=any", arch=self._archs[0])
        except procs.ProgramError as error:
            raise TandemError(
                "apt could not read the package lists:\n" + _errors(error.output),
                hint="no network? what is locked already needs none",
            ) from error

    def _versions(self, names: Iterable[str], arch: str) -> dict[tuple[str, str], Deb]:
        """Every version of these packages that the lists hold, by name and version."""
        if arch not in self._blocks:
            lists = sorted((self._root / "state" / "lists").glob(f"*_binary-{arch}_Packages*"))
            text = procs.capture(["/usr/lib/apt/apt-helper", "cat-file", *map(str, lists)], env=self._env(), within=120)
            self._blocks[arch] = blocks(text)
        found = self._blocks[arch]
        return {(deb.name, deb.version): deb for name in set(names) for deb in map(parse, found.get(name, ())) if deb}

    def _offer(self, lost: Sequence[Deb]) -> None:
        """Make apt know packages that only the store still has."""
        text = []
        for deb in lost:
            file = store.get(deb.sha256)
            fields = procs.capture(["dpkg-deb", "--field", str(file)]).strip()
            text.append(f"{fields}\nFilename: {deb.path}\nSize: {deb.size}\nSHA256: {deb.sha256}\n")
        packages = self._root / "kept" / "Packages"
        new = "\n".join(text)
        if packages.read_text(encoding="utf-8") != new:
            packages.write_text(new, encoding="utf-8")
            self._update()


@contextmanager
def apt(suite: str, archs: Sequence[str], log: Log) -> Iterator[Apt]:
    """A private apt for one run; its folder is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tandem-apt-") as folder:
        yield Apt(Path(folder), mirrors(suite), tuple(dict.fromkeys(archs)), log)


def blocks(text: str) -> dict[str, list[str]]:
    """The stanzas of a Packages file, unparsed, by package name."""
    found: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        head, _, name = block.lstrip("\n").partition("\n")[0].partition(": ")
        if head == "Package":
            found.setdefault(name, []).append(block)
    return found


def parse(block: str) -> Deb | None:
    """One stanza of a Packages file; None if it lacks a field that a lock needs."""
    fields = dict(re.findall(r"^(Package|Version|Architecture|SHA256|Size|Filename): (.*)$", block, re.MULTILINE))
    if len(fields) < 6:
        return None
    path = fields["Filename"].removeprefix("./")
    return Deb(
        fields["Package"], fields["Version"], fields["Architecture"], fields["SHA256"], int(fields["Size"]), path
    )


def complaint(output: str, suite: str, arch: str) -> str:
    """What apt says against a request, in one message."""
    unknown = re.findall(r"Unable to locate package (\S+)|Package '?([^'\s]+)'? has no installation candidate", output)
    if unknown:
        names = ", ".join(sorted({a or b for a, b in unknown}))
        return f"image.yaml: base.packages: {suite} has no package {names} for {arch}"
    wants = [line.strip() for line in output.splitlines() if re.search(r"(Depends|Conflicts|Breaks):", line)]
    return f"image.yaml: base.packages: {suite} cannot install this set for {arch}:\n" + "\n".join(
        wants or [output.strip()]
    )


def _errors(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if line.startswith(("E:", "W:"))) or output.strip()


def _conf(root: Path, host: str) -> str:
    """apt.conf of the private root: how the host reaches its mirrors, nothing else of the host."""
    ours = {
        "Dir::State": root / "state",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::preferences": root / "preferences",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Sandbox::User": "root",
        "APT::Get::AllowUnauthenticated": "false",
        "APT::Install-Suggests": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    kept = [
        line
        for line in host.splitlines()
        if line.startswith("Acquire::")
        and not re.match(r"Acquire::(IndexTargets|Languages|Retries|CompressionTypes)\b", line)
    ]
    return "\n".join([*kept, *(f'{key} "{value}";' for key, value in ours.items())]) + "\n"


def machine() -> str:
    """This machine's own architecture, as Debian calls it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def version() -> str:
    """apt's version."""
    return procs.capture(["apt-get", "--version"]).split()[1]
