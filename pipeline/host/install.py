"""Sets this machine up with what `pipeline.host.needs` finds missing; doitw runs it before tasks that need an engine.

It installs Debian packages, starts the engine and registers the emulator, and logs each step before it does it. It
uses or refuses an engine that exists already, but never changes it.
"""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import procs, sensitive
from pipeline.core.errors import HostError, TandemError
from pipeline.core.locks import locked
from pipeline.core.log import Log, step
from pipeline.host import apt_suite, binfmt, dockerd
from pipeline.host.endpoint import docker_host
from pipeline.host.needs import Need, list_needs

PACKAGES = {
    "docker client": ("docker-cli",),
    "buildx": ("docker-buildx",),
    "engine": ("docker.io", "containerd", "iptables"),
    "emulation": ("qemu-user", "qemu-user-binfmt"),
    "CA certificates": ("ca-certificates",),
    "ssh client": ("openssh-client",),
    "debian-archive-keyring": ("debian-archive-keyring",),
}
NEWER_PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd", "qemu-user", "qemu-user-binfmt")
"""Packages that an older Debian takes from a newer suite. They need no newer libc6 than its own."""
NEWER_SUITES = {"bookworm": "trixie"}
FEATURES = {"containerd-snapshotter": True}
APT_OPTIONS = (
    "DPkg::Lock::Timeout=600",
    "Dpkg::Options::=--force-confold",
    "Dpkg::Use-Pty=0",
    "Acquire::Retries=3",
    "Acquire::Languages=none",
)
APT_GET = (
    *("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"),
    *(word for option in APT_OPTIONS for word in ("-o", option)),
)
LOCK_FILE = Path("/run/tandem-host.lock")
REPAIR_COMMAND = ("dpkg", "--configure", "-a")
APT_LOCK_TIMEOUT_S = 600
FORBID_VARIABLE = "TANDEM_NO_HOST_SETUP"
PASSED_VARIABLES = ("BUILDX_CONFIG", "http_proxy", "https_proxy", "no_proxy")
"""Variables of the user that the set-up gets as root."""
EMULATION = "emulation of "
"""The name of the need of an emulator begins with this and ends with the platform."""


@dataclass(frozen=True)
class Command:
    """One command of the set-up, and its stdin."""

    argv: tuple[str, ...]
    stdin: str | None = None

    def __str__(self) -> str:
        line = shlex.join(self.argv)
        return line if self.stdin is None else f"printf %s {shlex.quote(self.stdin)} | {line}"


def set_up(log: Log, env: Mapping[str, str] = os.environ, needs: Callable[[], list[Need]] = list_needs) -> None:
    """Installs and starts what is missing on this machine. If nothing is missing, returns quickly.

    Raises HostError with what a person has to do, if it cannot or may not do that.
    """
    missing = _missing(needs)
    if not missing:
        return
    if env.get(FORBID_VARIABLE) == "1":
        raise HostError(_lack_message(missing), hint=_instructions(missing))
    _refuse_unfit_engine(missing)
    log.line(_lack_message(missing))
    if os.geteuid() != 0:
        _run_as_root(missing, log, env)
    else:
        with locked(LOCK_FILE):
            if missing := _missing(needs):  # another set-up may have finished meanwhile
                _install(missing, log)
    if missing := _missing(needs):
        _refuse_unfit_engine(missing)
        hint = "the set-up did not achieve it: " + "; ".join(need.remedy for need in _reportable(missing))
        raise HostError(_lack_message(missing), hint=hint)


def install_commands(
    missing: Sequence[Need], system: Mapping[str, str], apt: Path = apt_suite.APT_FOLDER
) -> list[Command]:
    """Returns the commands that install the missing packages, in order; `system` is the machine's os-release(5).

    Raises HostError for a system other than Debian 12 and later.
    """
    packages = [package for need in missing for package in _packages(need)]
    if not packages:
        return []
    codename = _codename(system, packages)
    commands: list[Command] = []
    if codename in NEWER_SUITES and set(packages) & set(NEWER_PACKAGES):
        files = apt_suite.suite_files(NEWER_SUITES[codename], codename, NEWER_PACKAGES, apt)
        commands += [Command(("tee", str(file.path)), file.text) for file in files]
    if "docker.io" in packages:
        # This comes before the packages, because a service manager starts the engine as soon as it is installed.
        commands.append(Command(("mkdir", "-p", str(dockerd.DAEMON_JSON.parent))))
        commands.append(Command(("tee", str(dockerd.DAEMON_JSON)), daemon_settings(dockerd.DAEMON_JSON)))
    commands.append(Command((*APT_GET, "update")))
    commands.append(Command((*APT_GET, "-y", "install", "--no-install-recommends", *packages)))
    return commands


def daemon_settings(file: Path) -> str:
    """Returns the content of daemon.json with the containerd image store on. All other settings stay.

    Raises HostError if the file does not hold a JSON object.
    """
    try:
        settings = json.loads(file.read_text()) if file.exists() else {}
        settings["features"] = {**settings.get("features", {}), **FEATURES}
    except (ValueError, TypeError, AttributeError) as error:
        raise HostError(f"{file} is not a JSON object: {error}", hint="fix it, or remove it") from error
    return json.dumps(settings, indent=2) + "\n"


def read_os_release(file: Path = Path("/etc/os-release")) -> dict[str, str]:
    """Returns the fields of os-release(5)."""
    words = shlex.split(file.read_text(), comments=True) if file.exists() else []
    return dict(word.partition("=")[::2] for word in words if "=" in word)


def _missing(needs: Callable[[], list[Need]] = list_needs) -> list[Need]:
    return [need for need in needs() if not need.ok]


def _packages(need: Need) -> tuple[str, ...]:
    key = need.name.partition(" of ")[0]
    if key == "engine" and (dockerd.is_installed() or docker_host()):
        return ()
    if key == "emulation" and binfmt.kernel_rule(need.name.partition(" of ")[2]):
        return ()
    return PACKAGES.get(key, ())


def _codename(system: Mapping[str, str], packages: Sequence[str]) -> str:
    codename = system.get("VERSION_CODENAME", "")
    release = system.get("VERSION_ID", "13")  # testing has none
    if system.get("ID") != "debian" or not release.isdecimal() or int(release) < 12:
        name = system.get("PRETTY_NAME", "this system")
        raise HostError(
            f"the set-up works on Debian 12 and later only, and this is {name}",
            hint=f"install what Debian calls {' '.join(packages)}; then ./doitw host says what is still missing",
        )
    return codename


def _unfit_engine_needs(missing: Sequence[Need]) -> list[Need]:
    """Returns the needs that only an engine's owner can meet: it answers but does not fit, or is not the usual one."""
    unfit = [need for need in missing if need.name in {"engine", "image store"}]
    answers = len(unfit) == 1 or any(need.name == "engine" and "no answer" not in need.found for need in unfit)
    forbidden = any(os.strerror(13) in need.found for need in unfit)
    return _reportable(unfit) if answers or forbidden or docker_host() else []


def _refuse_unfit_engine(missing: Sequence[Need]) -> None:
    """Raises HostError with what the owner of an engine can do."""
    if needs := _unfit_engine_needs(missing):
        raise HostError(
            "\n".join(f"{need.name}: wanted {need.wanted}, found {need.found}" for need in needs),
            hint="; ".join(need.remedy for need in needs),
        )


def _instructions(missing: Sequence[Need]) -> str:
    """Returns all that a person has to do if Tandem may not install anything."""
    unfit = _unfit_engine_needs(missing)
    lines = [f"{need.name}: {need.remedy}" for need in unfit]
    if script := _script([need for need in missing if need not in unfit]):
        lines += [f"{FORBID_VARIABLE}=1 forbids the set-up; as root:", script]
    return "\n".join(lines)


def _run_as_root(missing: Sequence[Need], log: Log, env: Mapping[str, str]) -> None:
    """Runs this set-up through sudo, if that asks for no password. -B keeps root's files out of the checkout."""
    hint = "run ./doitw as root, or as root:\n" + _script(missing)
    if not procs.which("sudo"):
        raise HostError(_lack_message(missing), hint=hint)
    try:
        procs.capture(["sudo", "-n", "true"])
    except TandemError as error:
        raise HostError(_lack_message(missing), hint=hint) from error
    procs.run(sudo_command(env), log=log, inherit=procs.DOCKER)


def sudo_command(env: Mapping[str, str]) -> list[str]:
    """Returns the command line of this set-up as root, with the user's settings.

    It names the engine explicitly, because root has other contexts than the user. A proxy's password is not on it,
    since sudo writes command lines into the system's log.
    """
    engine = f"DOCKER_HOST={where}" if (where := docker_host()) else "DOCKER_CONTEXT=default"
    folder = env.get("DOCKER_CONFIG") or Path.home() / ".docker"  # it has the docker client's plugins and builders
    passed = [name for name in PASSED_VARIABLES if name in env]
    secret = [name for name in passed if sensitive.holds_secret(env[name])]
    preserved = [f"--preserve-env={','.join(secret)}"] if secret else []
    settings = [
        engine,
        f"DOCKER_CONFIG={folder}",
        *(f"{name}={env[name]}" for name in passed if name not in secret),
    ]
    return ["sudo", "-n", *preserved, "env", *settings, sys.executable, "-B", "-m", "pipeline.host.install"]


def _install(missing: Sequence[Need], log: Log) -> None:
    if _platforms_to_emulate(missing) and binfmt.mount_register(log):
        missing = _missing()  # the kernel may already know the emulator
    commands = install_commands(missing, read_os_release())
    if commands:
        with step(log, "installing " + " ".join(package for need in missing for package in _packages(need))):
            for command in commands:
                _run(command, log)
    if not docker_host():
        dockerd.start_engine(log)
    for platform in _platforms_to_emulate(_missing()):
        binfmt.register_emulator(platform, log)


def _platforms_to_emulate(missing: Sequence[Need]) -> list[str]:
    return [need.name.removeprefix(EMULATION) for need in missing if need.name.startswith(EMULATION)]


def _run(command: Command, log: Log) -> None:
    if command.stdin is not None:
        log.line(f"$ {command}")
        procs.capture(command.argv, inherit=procs.NETWORK, stdin=command.stdin)
        return
    deadline = time.monotonic() + APT_LOCK_TIMEOUT_S
    repaired = False
    while True:
        try:
            procs.run(command.argv, log=log, inherit=procs.NETWORK)
        except procs.ProgramError as error:
            if not repaired and " ".join(REPAIR_COMMAND) in error.output:
                log.line("an installation was interrupted; dpkg finishes it first")
                repaired = True
                with suppress(procs.ProgramError):  # apt unpacks again what was only half unpacked
                    procs.run(
                        ("env", "DEBIAN_FRONTEND=noninteractive", *REPAIR_COMMAND), log=log, inherit=procs.NETWORK
                    )
                continue
            # A new machine runs apt daily. apt itself waits only for dpkg's lock.
            if "Could not get lock" not in error.output or time.monotonic() > deadline:
                raise HostError(str(error)) from error
            log.line("waiting for another apt")
            time.sleep(5)
        else:
            return


def _script(missing: Sequence[Need]) -> str:
    """Returns the whole set-up as shell commands."""
    try:
        lines = [str(command) for command in install_commands(missing, read_os_release())]
    except HostError as error:
        return error.hint
    if any(need.name == "engine" for need in missing) and not docker_host():
        lines.append(dockerd.start_command())
    lines += [binfmt.register_command(platform) for platform in _platforms_to_emulate(missing)]
    return "\n".join(lines)


def _lack_message(missing: Sequence[Need]) -> str:
    lacking = ", ".join(f"{need.name} {need.wanted} (found: {need.found})" for need in _reportable(missing))
    return f"this machine lacks {lacking}"


def _reportable(missing: Sequence[Need]) -> list[Need]:
    """Returns the needs without the image store, if there is no engine to have one."""
    return [need for need in missing if need.found != "no engine"]


def main() -> int:
    """Sets this machine up; returns the exit code."""
    from pipeline.host.venv import run_setup  # no other use of this module needs it

    return run_setup(set_up)


if __name__ == "__main__":
    sys.exit(main())
