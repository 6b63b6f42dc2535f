"""Resolves Python packages for another machine, with uv: only wheels, with hashes, as of a cut-off date.

Index, proxies and certificates are the host's own. uv reads UV_* and uv.toml; settings that only pip's configuration
has are put into uv's environment.
"""

import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.core import procs
from pipeline.core.errors import ConfigError
from pipeline.core.log import Log
from pipeline.lock import alternatives, conflict, known_bad, uv
from pipeline.lock.wheel_tags import WheelTarget

NEWEST_GLIBC = 40
"""The newest N of manylinux_2_N that uv accepts."""
RESOLVE_TIMEOUT_S = 600


@dataclass(frozen=True, order=True)
class Wheel:
    """A locked distribution."""

    name: str
    """Its normalised name."""
    version: str
    hashes: tuple[str, ...]
    """sha256:<hex> of every wheel that fits, the best one first."""
    file: str
    """The file name of the wheel that fits best."""
    size: int
    """The size of that wheel, in bytes; 0 if the index does not say it."""

    @property
    def sha256(self) -> str:
        """The hash of `file`, as hex."""
        return self.hashes[0].partition(":")[2]


@dataclass(frozen=True, kw_only=True)
class WheelRequest:
    """A request to the resolver."""

    requirements: Sequence[str]
    constraints: Sequence[str]
    target: WheelTarget
    cutoff: str
    """The day as of which the index is asked, as in 2026-01-31; empty for now."""
    origin: str
    """The file that makes the request, for messages."""
    pins: Mapping[str, str]
    """The versions to keep where possible, by name."""
    first: str = ""
    """The URL of an index that is asked before all others; a name that it has is looked up nowhere else."""
    undated: Sequence[str] = ()
    """The names in that index, whose files have no date."""
    lowest: bool = False
    """Whether to choose the oldest version of each requirement instead of the newest."""
    within: float = RESOLVE_TIMEOUT_S
    """The timeout, in seconds."""


def resolve_wheels(request: WheelRequest, log: Log) -> tuple[Wheel, ...]:
    """Returns the distributions that meet a request, sorted by name; pins are kept where the request allows it.

    Raises ConfigError for a conflict, for a package that does not exist and for one without a fitting wheel;
    TandemError if the index cannot be reached. The hint of a conflict with a requirement for one version names the
    oldest later version that resolves with the rest.
    """
    try:
        wheels = solve_request(request, log)
    except conflict.VersionConflict as clash:
        other = replace(request, pins={}, lowest=True, within=alternatives.SEARCH_TIMEOUT_S)
        later = alternatives.later_versions(request.requirements, clash.text, solver(other, log))
        clash.advise(alternatives.describe_later(later, request.origin))
        raise
    warn_known_bad({wheel.name: wheel.version for wheel in wheels}, log)
    return wheels


def warn_known_bad(versions: Mapping[str, str], log: Log) -> None:
    """Announces combinations of resolved distributions that are known to fail."""
    for line in known_bad.find_warnings(versions):
        log.step(f"warning: {line}")


def solver(request: WheelRequest, log: Log) -> alternatives.Solve:
    """Returns a function that solves a request with other requirements, and returns versions by name."""

    def solve(requirements: Sequence[str]) -> dict[str, str]:
        wheels = solve_request(replace(request, requirements=requirements), log)
        return {wheel.name: wheel.version for wheel in wheels}

    return solve


def solve_request(request: WheelRequest, log: Log) -> tuple[Wheel, ...]:
    """Does what resolve_wheels() does, but raises a VersionConflict at once, without a search for other versions."""
    refuse_unreadable(request.origin, request.requirements, request.constraints)
    packages = _pylock(request, log)
    chosen = [_wheel(package, request.target) for package in packages]
    misfits = [
        f"{package['name']} {package.get('version', '')}".strip()
        for package, wheel in zip(packages, chosen, strict=True)
        if wheel is None
    ]
    if misfits:
        raise ConfigError(
            f"{request.origin}: no wheel with a hash fits {request.target.words}: {', '.join(misfits)}",
            hint="constrain each to a version that has one (python.constraints)",
        )
    return tuple(sorted(wheel for wheel in chosen if wheel is not None))


def locate_wheels(wheels: Iterable[Wheel], target: WheelTarget, log: Log) -> dict[str, str]:
    """Returns the index's URLs of locked wheels by SHA-256. They are for this run only and never written to a file."""
    requirements = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
    request = WheelRequest(
        requirements=requirements, constraints=(), target=target, cutoff="", origin="the lock", pins={}
    )
    urls = {}
    for package in _pylock(request, log, "--no-deps"):
        for wheel in package.get("wheels", ()):
            urls[wheel.get("hashes", {}).get("sha256", "")] = wheel["url"]
    return urls


def refuse_unreadable(origin: str, requirements: Iterable[str], constraints: Iterable[str]) -> None:
    """Raises ConfigError for an item that is not a requirement of a name and versions, such as an option of uv."""
    from packaging.requirements import InvalidRequirement, Requirement

    for key, items in (("requirements", requirements), ("constraints", constraints)):
        for number, item in enumerate(items):
            try:
                direct = Requirement(item).url
            except InvalidRequirement as error:
                reason = str(error).splitlines()[0]
                raise ConfigError(
                    f"{origin}: python.{key}[{number}]: {item!r} cannot be read: {reason}",
                    hint="a name, extras and versions, as in ray[default]>=2.50",
                ) from error
            if direct:
                raise ConfigError(
                    f"{origin}: python.{key}[{number}]: {item!r} names an address, which a lock does not keep",
                    hint="a name and versions; UV_INDEX or uv.toml can name the index that has it",
                )


def _pylock(request: WheelRequest, log: Log, *options: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tandem-uv-") as folder:
        scratch = Path(folder)
        out = scratch / "pylock.toml"
        (scratch / "requirements.in").write_text("\n".join(request.requirements) + "\n", encoding="utf-8")
        (scratch / "constraints.in").write_text("\n".join(request.constraints) + "\n", encoding="utf-8")
        if request.pins:
            out.write_text(_format_pins(request.pins), encoding="utf-8")
        argv = [uv.find_program(), *_arguments(request), *options]
        log.line("$ " + " ".join(["uv", *argv[1:]]))
        argv += [word for name in request.undated for word in ("--exclude-newer-package", f"{name}=false")]
        try:
            procs.capture(argv, cwd=scratch, inherit=procs.NETWORK, env=_environment(request), timeout_s=request.within)
        except procs.ProgramError as error:
            for line in error.output.splitlines():
                log.line(line)
            raise conflict.explain_failure(
                error.output, request.origin, request.requirements, request.constraints
            ) from error
        packages: list[dict[str, Any]] = tomllib.loads(out.read_text(encoding="utf-8")).get("packages", [])
        return packages


def _arguments(request: WheelRequest) -> list[str]:
    target = request.target
    glibc = min(target.glibc, NEWEST_GLIBC)
    return [
        "pip", "compile", "requirements.in", "--constraints", "constraints.in",
        "--format", "pylock.toml", "--output-file", "pylock.toml", "--no-header", "--no-annotate",
        "--python-version", target.python,
        "--python-platform", f"{target.machine}-manylinux_2_{glibc}",
        "--only-binary", ":all:", "--no-sources", "--no-python-downloads", "--color", "never", "--no-progress",
        *(["--exclude-newer", f"{request.cutoff}T00:00:00Z"] if request.cutoff else []),
        *(["--resolution", "lowest-direct"] if request.lowest else []),
    ]  # fmt: skip


def _environment(request: WheelRequest) -> dict[str, str]:
    env = uv.environment()
    if request.first:
        # A name that this index has is looked up nowhere else; the indexes of the host's settings follow.
        env |= {"UV_INDEX": f"{request.first} {os.environ.get('UV_INDEX', '')}".strip()}
        env |= {"UV_INDEX_STRATEGY": "first-index"}
    return env


def _format_pins(pins: Mapping[str, str]) -> str:
    """Return versions as a former result of uv: it keeps them if possible."""
    head = 'lock-version = "1.0"\ncreated-by = "tandem"\n'
    return head + "".join(f'\n[[packages]]\nname = "{name}"\nversion = "{pins[name]}"\n' for name in sorted(pins))


def _wheel(package: Mapping[str, Any], target: WheelTarget) -> Wheel | None:
    fitting = []
    for entry in package.get("wheels", ()):
        file = entry.get("name") or unquote(urlsplit(entry.get("url", entry.get("path", ""))).path).rsplit("/", 1)[-1]
        rank, sha256 = target.rank(file), entry.get("hashes", {}).get("sha256")
        if rank is not None and sha256:
            fitting.append((rank, file, f"sha256:{sha256}", int(entry.get("size", 0))))
    if not fitting:
        return None
    fitting.sort()
    hashes = tuple(dict.fromkeys(hash_ for _, _, hash_, _ in fitting))
    return Wheel(package["name"], package["version"], hashes, fitting[0][1], fitting[0][3])
