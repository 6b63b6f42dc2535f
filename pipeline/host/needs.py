"""Lists what this machine has and lacks for tasks that need an engine, from a few files and one request.

It changes nothing; `pipeline.host.install` does.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.core import platforms, procs
from pipeline.core.errors import TandemError
from pipeline.core.files import replacing
from pipeline.core.tables import format_table
from pipeline.host.endpoint import SOCKET, buildx_plugin, docker_host, engine_info, is_local, json_object

BINFMT_FOLDER = Path("/proc/sys/fs/binfmt_misc")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIN_ENGINE = (26,)
MIN_BUILDX = (0, 13)
SNAPSHOTTER = "io.containerd.snapshotter.v1"
CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where Debian, Fedora and Alpine keep the certificates that downloads are checked with."""
TARGETS = ("linux/arm64",)
"""The platforms of images whose checks must run on this machine, emulated if it has another architecture."""


class Need(Struct, frozen=True):
    """One thing that the tasks need of this machine."""

    name: str
    ok: bool
    found: str
    wanted: str
    remedy: str = ""
    """What a person can do if it is missing."""


def list_needs() -> list[Need]:
    """Returns everything that the tasks need of this machine, in the order of its set-up."""
    where = docker_host()
    info, trouble = engine_info(where)
    return [
        _program_need("docker client", "docker", "docker-cli"),
        _buildx_need(),
        _engine_need(where, info, trouble),
        _image_store_need(info),
        # Another machine's kernel cannot be examined from here; smoke finds out.
        *(_emulation_need(platform) for platform in emulated_platforms(info) if is_local(where)),
        _certificates_need(),
        _program_need("ssh client", "ssh", "openssh-client"),
        Need(
            "debian-archive-keyring",
            KEYRING.exists(),
            str(KEYRING) if KEYRING.exists() else "nothing",
            "Debian's keys",
            "install debian-archive-keyring",
        ),
    ]


def needs_table(needs: list[Need]) -> str:
    """Returns the needs as a table for people, and the remedy for each that is missing."""
    rows = [("ok" if need.ok else "MISSING", need.name, need.wanted, need.found) for need in needs]
    remedies = [f"{need.name}: {need.remedy}" for need in needs if not need.ok]
    return "\n".join([*format_table([("", "need", "wanted", "found"), *rows]), *remedies])


def emulated_platforms(info: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the TARGETS that the engine's machine must emulate. Without an engine, that is this machine."""
    machine = str((info or {}).get("Architecture") or os.uname().machine)
    return tuple(target for target in TARGETS if platforms.machine_of(target) != machine)


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: (0, 13, 1) for `v0.13.1+ds1`, () if there are none."""
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(number) for number in numbers[1].split(".")) if numbers else ()


def registered_emulator(platform: str, folder: Path = BINFMT_FOLDER) -> tuple[str, str]:
    """Returns the interpreter and flags that the kernel has registered for a platform's programs; ("", "") if none.

    Format: https://docs.kernel.org/admin-guide/binfmt-misc.html
    """
    wanted = platforms.ELF_MACHINES[platforms.architecture_in(platform)]
    for entry in _register_entries(folder):
        fields = dict(line.split(" ", 1) for line in entry.read_text().splitlines() if " " in line)
        magic = bytes.fromhex(fields.get("magic", ""))
        enabled = entry.read_text().startswith("enabled")
        if enabled and magic[:4] == b"\x7fELF" and int.from_bytes(magic[18:20], "little") == wanted:
            return fields.get("interpreter", ""), fields.get("flags:", "")
    return "", ""


def _register_entries(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (entry for entry in sorted(folder.iterdir()) if entry.name not in {"register", "status"})


def _program_need(name: str, program: str, package: str) -> Need:
    path = procs.which(program)
    return Need(name, path is not None, path or "nothing", "on PATH", f"install {package}")


def _certificates_need() -> Need:
    named = os.environ.get("SSL_CERT_FILE")
    path = next((path for path in ([named] if named else CA_BUNDLES) if Path(path).is_file()), None)
    return Need("CA certificates", path is not None, path or "nothing", "a bundle", "install ca-certificates")


def _engine_need(where: str, info: Mapping[str, Any] | None, trouble: str) -> Need:
    at = where or SOCKET
    wanted = ">= " + ".".join(map(str, MIN_ENGINE))
    if info is None:
        remedy = f"start the engine at {at}, or unset what points to it (DOCKER_HOST, DOCKER_CONTEXT, docker context)"
        if not where:
            remedy = "start dockerd" if procs.which("dockerd") else "install docker.io"
        if trouble == os.strerror(13):
            remedy = "give this user access: usermod -aG docker USER as root, then log in again"
        return Need("engine", False, f"no answer at {at}: {trouble}", wanted, remedy)
    version = str(info.get("ServerVersion", ""))
    return Need(
        "engine",
        version_numbers(version) >= MIN_ENGINE,
        f"{version} at {at}",
        wanted,
        "upgrade the engine; it was not made by Tandem",
    )


def _image_store_need(info: Mapping[str, Any] | None) -> Need:
    # A docker-container builder does not help: a classic store does not know the digests of manifests.
    wanted = "containerd's"
    remedy = (
        'add {"features": {"containerd-snapshotter": true}} to /etc/docker/daemon.json and restart the engine'
        " (its present images are then hidden)"
    )
    if info is None:
        return Need("image store", False, "no engine", wanted, "start the engine first")
    driver = dict(info.get("DriverStatus") or ()).get("driver-type", "")
    if driver == SNAPSHOTTER:
        return Need("image store", True, "containerd", wanted)
    return Need("image store", False, f"{info.get('Driver')} (classic)", wanted, remedy)


def _buildx_need() -> Need:
    wanted = ">= " + ".".join(map(str, MIN_BUILDX))
    path = buildx_plugin()
    version = _buildx_version(path) if path else ""
    found = f"{version or 'no version'} at {path}" if path else "nothing"
    return Need("buildx", version_numbers(version) >= MIN_BUILDX, found, wanted, "install docker-buildx")


def _buildx_version(path: Path) -> str:
    """Returns the version that buildx prints, or "". Asking takes 40 ms, so the answer is kept for that file."""
    status = path.stat()
    identity = f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem/buildx.json"
    kept = json_object(cache)
    if kept.get("identity") == identity:
        return str(kept["version"])
    try:
        words = procs.capture([str(path), "version"], inherit=procs.DOCKER, timeout_s=20).split()
    except TandemError:
        return ""
    version = words[1] if len(words) > 1 else ""
    with suppress(OSError), replacing(cache) as fresh:  # without a cache, the next call asks again
        fresh.write_text(json.dumps({"identity": identity, "version": version}))
    return version


def _emulation_need(platform: str) -> Need:
    name, wanted = f"emulation of {platform}", "registered with flag F"
    interpreter, flags = registered_emulator(platform)
    # With flag F the kernel keeps the interpreter open, so containers do not need it in them.
    ok = "F" in flags
    found = f"{interpreter} ({flags})" if interpreter else "nothing" if BINFMT_FOLDER.is_dir() else "no binfmt_misc"
    return Need(name, ok, found, wanted, "install qemu-user and qemu-user-binfmt, and register it")
