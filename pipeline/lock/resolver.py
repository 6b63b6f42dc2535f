"""Python packages resolved by uv for another machine: wheels only, with hashes, as of a cut-off date.

Index, proxies and certificates are the host's own. uv reads UV_* and uv.toml; what only pip's configuration names
is handed to uv in its environment.
"""

import configparser
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.core import procs
from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import Log, announce
from pipeline.lock import alternatives, conflict, known_bad
from pipeline.lock.wheel_tags import Target

NEWEST_GLIBC = 40  # the newest manylinux_2_N that uv can be asked for


@dataclass(frozen=True, order=True)
class Wheel:
    """A locked distribution: its normalised name, its version, and "sha256:<hex>" of every wheel that fits."""

    name: str
    version: str
    hashes: tuple[str, ...]
    file: str
    size: int

    @property
    def sha256(self) -> str:
        """The hash of `file`, the wheel that fits best, as hex."""
        return self.hashes[0].partition(":")[2]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of the resolver. `origin` is the file that asks, `pins` the versions to keep, `cutoff` a day.

    `first` is the URL of an index that is asked before all others, and alone for the names in `undated`: those that it
    has. `lowest` asks for the oldest version of each requirement instead of the newest; `within` is in seconds.
    """

    requirements: Sequence[str]
    constraints: Sequence[str]
    target: Target
    cutoff: str
    origin: str
    pins: Mapping[str, str]
    first: str = ""
    undated: Sequence[str] = ()
    lowest: bool = False
    within: float = 600


def wheels(request: Request, log: Log) -> tuple[Wheel, ...]:
    """The distributions that answer a request, sorted by name; pins are kept where the request allows it.

    Raises ConfigError in words for a conflict or a package that does not exist or has no fitting wheel,
    TandemError if the index cannot be reached. A conflict with a version that the request pins names, if there is one,
    the oldest later version that the rest of the request can be had with.
    """
    try:
        found = solve(request, log)
    except conflict.Clash as clash:
        other = replace(request, pins={}, lowest=True, within=alternatives.WITHIN)
        later = alternatives.later(request.requirements, clash.text, answers(other, log))
        clash.advise(alternatives.words(later, request.origin))
        raise
    warn({wheel.name: wheel.version for wheel in found}, log)
    return found


def warn(versions: Mapping[str, str], log: Log) -> None:
    """Say what is known to fail among distributions that resolve."""
    for line in known_bad.warnings(versions):
        announce(log, f"warning: {line}")


def answers(request: Request, log: Log) -> alternatives.Solve:
    """A request with other requirements, as a function from these to versions by name."""
    return lambda given: {wheel.name: wheel.version for wheel in solve(replace(request, requirements=given), log)}


def solve(request: Request, log: Log) -> tuple[Wheel, ...]:
    """What wheels() does, without a look for another version in case of a conflict (conflict.Clash)."""
    readable(request.origin, request.requirements, request.constraints)
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


def locate(wheels: Iterable[Wheel], target: Target, log: Log) -> dict[str, str]:
    """Where the index has each locked wheel: URLs by SHA-256. They are for this run only, never for a file."""
    requirements = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
    request = Request(requirements=requirements, constraints=(), target=target, cutoff="", origin="the lock", pins={})
    found = {}
    for package in _pylock(request, log, "--no-deps"):
        for wheel in package.get("wheels", ()):
            found[wheel.get("hashes", {}).get("sha256", "")] = wheel["url"]
    return found


def uv() -> str:
    """The uv program that this Python environment brought along."""
    from uv import find_uv_bin

    return find_uv_bin()


def version() -> str:
    """uv's version: part of what decides a lock."""
    from importlib.metadata import version as installed

    return installed("uv")


def readable(origin: str, requirements: Iterable[str], constraints: Iterable[str]) -> None:
    """Raise ConfigError for what is no requirement of a name and versions; an option of the resolver is none."""
    from packaging.requirements import InvalidRequirement, Requirement

    for key, given in (("requirements", requirements), ("constraints", constraints)):
        for nth, item in enumerate(given):
            try:
                direct = Requirement(item).url
            except InvalidRequirement as error:
                why = str(error).splitlines()[0]
                raise ConfigError(
                    f"{origin}: python.{key}[{nth}]: {item!r} cannot be read: {why}",
                    hint="a name, extras and versions, as in ray[default]>=2.50",
                ) from error
            if direct:
                raise ConfigError(
                    f"{origin}: python.{key}[{nth}]: {item!r} names an address, which a lock does not keep",
                    hint="a name and versions; UV_INDEX or uv.toml can name the index that has it",
                )


def _pylock(request: Request, log: Log, *options: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tandem-uv-") as folder:
        scratch = Path(folder)
        out = scratch / "pylock.toml"
        (scratch / "requirements.in").write_text("\n".join(request.requirements) + "\n", encoding="utf-8")
        (scratch / "constraints.in").write_text("\n".join(request.constraints) + "\n", encoding="utf-8")
        if request.pins:
            out.write_text(_preferences(request.pins), encoding="utf-8")
        argv = [uv(), *_words(request), *options]
        log.line("$ " + " ".join(["uv", *argv[1:]]))
        argv += [word for name in request.undated for word in ("--exclude-newer-package", f"{name}=false")]
        try:
            procs.capture(argv, cwd=scratch, inherit=procs.NETWORK, env=_surroundings(request), within=request.within)
        except procs.ProgramError as error:
            for line in error.output.splitlines():
                log.line(line)
            raise conflict.explain(error.output, request.origin, request.requirements, request.constraints) from error
        found: list[dict[str, Any]] = tomllib.loads(out.read_text(encoding="utf-8")).get("packages", [])
        return found


def _words(request: Request) -> list[str]:
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


def _surroundings(request: Request) -> dict[str, str]:
    env = environment()
    if request.first:
        # A name that this index has is looked for nowhere else; the indexes of the host's settings follow.
        env |= {"UV_INDEX": f"{request.first} {os.environ.get('UV_INDEX', '')}".strip()}
        env |= {"UV_INDEX_STRATEGY": "first-index"}
    return env


def _preferences(pins: Mapping[str, str]) -> str:
    """A former result as uv reads it back: versions to keep where nothing speaks against them."""
    head = 'lock-version = "1.0"\ncreated-by = "tandem"\n'
    return head + "".join(f'\n[[packages]]\nname = "{name}"\nversion = "{pins[name]}"\n' for name in sorted(pins))


def _wheel(package: Mapping[str, Any], target: Target) -> Wheel | None:
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


def environment(given: Mapping[str, str] | None = None, files: Iterable[Path] | None = None) -> dict[str, str]:
    """What uv's environment needs besides: the index and certificates of pip's configuration, if uv has none.

    `given` is the environment (by default this process's), `files` pip's configuration files, the weightiest last.
    """
    env = os.environ if given is None else given
    ours = {"UV_PYTHON_DOWNLOADS": "never"}
    if env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or _uv_names_an_index(env):
        return ours
    pip = _pip(env, _pip_files(env) if files is None else files)
    if "index-url" in pip:
        ours["UV_DEFAULT_INDEX"] = pip["index-url"]
        if "trusted-host" in pip and "UV_INSECURE_HOST" not in env:
            ours["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    if "cert" in pip and "SSL_CERT_FILE" not in env:
        ours["SSL_CERT_FILE"] = pip["cert"]
    if "proxy" in pip and not {"ALL_PROXY", "HTTPS_PROXY", "https_proxy", "all_proxy"} & env.keys():
        ours["ALL_PROXY"] = pip["proxy"]
    return ours


def _uv_names_an_index(env: Mapping[str, str]) -> bool:
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/root")) / ".config")
    files = (
        [Path(env["UV_CONFIG_FILE"])] if env.get("UV_CONFIG_FILE") else [home / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    )
    for file in files:
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError):
            continue  # none there, or uv itself will say what is wrong with it
        if {"index", "index-url", "no-index"} & (settings.keys() | settings.get("pip", {}).keys()):
            return True
    return False


def _pip_files(env: Mapping[str, str]) -> list[Path]:
    """Where pip looks for its configuration, in its order."""
    if env.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = Path(env.get("HOME", "/root"))
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(folder) / "pip/pip.conf" for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    own = [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    return [*shared, Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf", *own]


def _pip(env: Mapping[str, str], files: Iterable[Path]) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read([str(file) for file in files], encoding="utf-8")
    except configparser.Error as error:
        raise TandemError(f"pip's configuration cannot be read: {error}") from error
    found = dict(parser["global"]) if parser.has_section("global") else {}
    for key in ("index-url", "trusted-host", "cert", "proxy"):
        value = env.get("PIP_" + key.replace("-", "_").upper())
        if value:
            found[key] = value
    return {key: value.strip() for key, value in found.items() if value.strip()}
