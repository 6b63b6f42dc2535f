"""Runs apt in a private root: it resolves packages of any architecture, and leaves the host's own apt state alone."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.core import procs, redact, store
from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import Log
from pipeline.core.suggest import suggestion
from pipeline.lock.debs import Deb, PackageSource, package_sources

APT_TIMEOUT_S = 300
LISTS_TIMEOUT_S = 120
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITES = ("bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable")
"""The suites to suggest for a name that the mirrors do not have."""
UNSTABLE = ("sid", "unstable")
"""The names of the suite that updates and security fixes go into directly, without suites beside it."""


class Apt:
    """apt with the package lists of one suite for one architecture, in a folder of its own.

    `origin` is the file and the key that name the suite, for messages.
    """

    def __init__(self, root: Path, sources: Sequence[PackageSource], arch: str, log: Log, origin: str = "") -> None:
        self._root, self._arch, self._log, self._origin = root, arch, log, origin
        self._sources = tuple(sources)
        self._blocks: dict[str, list[str]] = {}
        for folder in ("state/lists/partial", "cache/archives/partial", "etc", "kept"):
            (root / folder).mkdir(parents=True)
        (root / "status").touch()
        (root / "preferences").touch()
        (root / "kept" / "Packages").touch()
        self._write_sources()
        host = procs.capture(["apt-config", "dump"], inherit=procs.NETWORK)
        redact.register_in(host)
        (root / "apt.conf").write_text(_conf(root, arch, host), encoding="utf-8")
        self._update()

    def resolve(self, packages: Sequence[str], pins: Iterable[Deb] = (), origin: str = "") -> tuple[Deb, ...]:
        """Returns the packages and their dependencies, without recommendations, sorted by name.

        `pins` are versions to keep if the suite or the store still has them, and if nothing needs another version.
        `origin` is the file and the key that ask for the packages, for messages.
        Raises ConfigError if a package is unknown or cannot be installed.
        """
        held = [deb for deb in pins if deb.arch in {self._arch, "all"}]
        known = self._versions(deb.name for deb in held)
        only_stored = [deb for deb in held if (deb.name, deb.version) not in known and store.stored_file(deb.sha256)]
        self._offer(only_stored)
        known = {**known, **{(deb.name, deb.version): deb for deb in only_stored}}
        text = self._simulate(packages, [deb for deb in held if (deb.name, deb.version) in known], origin)
        chosen = [
            (name.partition(":")[0], version) for name, version in re.findall(r"^Inst (\S+) \((\S+) ", text, re.M)
        ]
        known = {**self._versions((name for name, _ in chosen)), **known}
        return tuple(sorted(known[key] for key in chosen))

    def _simulate(self, packages: Sequence[str], held: Sequence[Deb], origin: str) -> str:
        """Return apt's plan; as long as it has none, drop the pins that are in its way."""
        while True:
            pins = [f"Package: {deb.name}\nPin: version {deb.version}\nPin-Priority: 1001\n" for deb in held]
            (self._root / "preferences").write_text("\n".join(pins), encoding="utf-8")
            argv = ["apt-get", "install", "--simulate", "--no-install-recommends", *packages]
            try:
                return procs.run(
                    argv, log=self._log, inherit=procs.NETWORK, env=self._env(), timeout_s=APT_TIMEOUT_S, quiet=True
                )
            except procs.ProgramError as error:
                clashing = clashing_packages(error.output) & {deb.name for deb in held}
                if not held:
                    raise ConfigError(
                        refusal_message(error.output, self._sources[0].suite, self._arch, origin)
                    ) from error
                freed = clashing or {deb.name for deb in held}
                self._log.line("cannot be kept as locked: " + ", ".join(sorted(freed)))
                held = [deb for deb in held if deb.name not in freed]

    def _apt(self, *words: str) -> str:
        return procs.capture(["apt-get", *words], inherit=procs.NETWORK, env=self._env(), timeout_s=APT_TIMEOUT_S)

    def _env(self) -> Mapping[str, str]:
        return {"APT_CONFIG": str(self._root / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}

    def _write_sources(self) -> None:
        options = f"arch={self._arch}" + (f" signed-by={KEYRING}" if KEYRING.is_file() else "")
        lines = [f"deb [{options}] {source.uri} {source.suite} main" for source in self._sources]
        lines.append(f"deb [trusted=yes arch={self._arch}] file:{self._root}/kept ./")
        (self._root / "sources.list").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _update(self) -> None:
        words = " ".join(source.suite for source in self._sources)
        self._log.line(f"reading the package lists of {words} for {self._arch} …")
        try:
            # apt's own cache of the lists is made by the first who needs it.
            self._apt("update", "--error-on=any", "--option", "pkgCacheFile::Generate=false")
        except procs.ProgramError as error:
            suite = self._sources[0].suite
            if lacks_suite(error.output, suite):
                message = _at(self._origin, f"Debian's mirror has no suite {suite!r}")
                raise ConfigError(message, hint=suggestion(suite, SUITES)) from error
            raise TandemError(
                "apt could not read the package lists:\n" + _errors(error.output),
                hint="no network? what is locked already needs none",
            ) from error

    def _versions(self, names: Iterable[str]) -> dict[tuple[str, str], Deb]:
        """Return every version of these packages in the lists, by name and version."""
        if not self._blocks:
            lists = sorted((self._root / "state" / "lists").glob(f"*_binary-{self._arch}_Packages*"))
            text = procs.capture(
                ["/usr/lib/apt/apt-helper", "cat-file", *map(str, lists)], env=self._env(), timeout_s=LISTS_TIMEOUT_S
            )
            self._blocks = stanzas(text)
        debs = (parse_stanza(block) for name in set(names) for block in self._blocks.get(name, ()))
        return {(deb.name, deb.version): deb for deb in debs if deb}

    def _offer(self, only_stored: Sequence[Deb]) -> None:
        """Offer packages to apt that only the store still has."""
        text = []
        for deb in only_stored:
            file = store.stored_file(deb.sha256)
            fields = procs.capture(["dpkg-deb", "--field", str(file)]).strip()
            text.append(f"{fields}\nFilename: {deb.path}\nSize: {deb.size}\nSHA256: {deb.sha256}\n")
        packages = self._root / "kept" / "Packages"
        new = "\n".join(text)
        if packages.read_text(encoding="utf-8") != new:
            packages.write_text(new, encoding="utf-8")
            self._update()


@contextmanager
def private_apt(suite: str, arch: str, log: Log, origin: str = "") -> Iterator[Apt]:
    """Opens a private apt; its folder is removed afterwards.

    Raises ConfigError, beginning with `origin`, if the mirrors have no such suite; TandemError if they do not answer.
    """
    with tempfile.TemporaryDirectory(prefix="tandem-apt-") as folder:
        sources = package_sources(suite)
        yield Apt(Path(folder), sources[:1] if suite in UNSTABLE else sources, arch, log, origin)


def stanzas(text: str) -> dict[str, list[str]]:
    """Returns the stanzas of a Packages file, unparsed, by package name."""
    by_name: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        head, _, name = block.lstrip("\n").partition("\n")[0].partition(": ")
        if head == "Package":
            by_name.setdefault(name, []).append(block)
    return by_name


def parse_stanza(block: str) -> Deb | None:
    """Returns the package of a stanza of a Packages file; None if it lacks a field that a lock needs."""
    fields = dict(re.findall(r"^(Package|Version|Architecture|SHA256|Size|Filename): (.*)$", block, re.MULTILINE))
    if len(fields) < 6:
        return None
    path = fields["Filename"].removeprefix("./")
    return Deb(
        fields["Package"], fields["Version"], fields["Architecture"], fields["SHA256"], int(fields["Size"]), path
    )


def clashing_packages(output: str) -> set[str]:
    """Returns the packages that exclude each other, by apt's output."""
    pairs = re.findall(r"^ *(\S+) : (?:Pre)?\w+: (\S+)|^ +(?:Pre)?(?:Depends|Breaks|Conflicts): (\S+)", output, re.M)
    return {name.partition(":")[0] for pair in pairs for name in pair if name}


def lacks_suite(output: str, suite: str) -> bool:
    """Returns whether, by apt's output, the mirror answers and does not have the suite."""
    missing = rf"^E: The repository '\S+ {re.escape(suite)} Release' does not have a Release file"
    return re.search(missing, output, re.MULTILINE) is not None and "Failed to fetch" not in output


def refusal_message(output: str, suite: str, arch: str, origin: str = "") -> str:
    """Returns why apt refuses a request, as one message that begins with `origin`."""
    unknown = re.findall(r"Unable to locate package (\S+)|Package '?([^'\s]+)'? has no installation candidate", output)
    if unknown:
        names = ", ".join(sorted({a or b for a, b in unknown}))
        return _at(origin, f"{suite} has no package {names} for {arch}")
    reasons = [line.strip() for line in output.splitlines() if re.search(r"(Depends|Conflicts|Breaks):", line)]
    return "\n".join([_at(origin, f"{suite} cannot install this set for {arch}:"), *(reasons or [output.strip()])])


def _at(origin: str, message: str) -> str:
    return f"{origin}: {message}" if origin else message


def _errors(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if line.startswith(("E:", "W:"))) or output.strip()


def _conf(root: Path, arch: str, host: str) -> str:
    """Return apt.conf of the private root, which takes only the host's ways to its mirrors."""
    settings = {
        "Dir::State": root / "state",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::preferences": root / "preferences",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
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
    return "\n".join([*kept, *(f'{key} "{value}";' for key, value in settings.items())]) + "\n"
