"""How ssh finds the lab: keys, known hosts and configuration below artifacts/lab, and an `ssh` that uses them.

Both the docker client and the SDK call the `ssh` of PATH, and neither passes options on. So the lab has an `ssh` of its
own, in a folder that is put first on PATH; for other hosts it reads the person's own configuration, as ever.
"""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from pipeline.core import procs
from pipeline.core.errors import HostError
from pipeline.core.files import write_whole

KEY, KNOWN, CONFIG, BIN = "id_ed25519", "known_hosts", "config", "bin"
# What ends a quoted word of ssh_config(5) or is read as something else in it, and what parts PATH.
UNSPEAKABLE = re.compile(r"""["\\:\x00-\x1f\x7f]|\$\{""")
KEYGEN = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tandem lab", "-f")


def folder(root: Path) -> Path:
    """Where a checkout's lab keeps its files."""
    return root / "artifacts" / "lab"


def check(there: Path) -> str:
    """The machine's own ssh, never that of a lab.

    Raises HostError if ssh or ssh-keygen is not there, or if `there`, the folder of the lab's files, cannot be told.
    """
    if odd := UNSPEAKABLE.search(str(there)):
        raise HostError(
            f"{there}: neither PATH nor ssh can be told of a folder with {odd[0]!r} in its name",
            hint="move the checkout to a path without it",
        )
    own = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if not _is_a_lab_s(part)]
    found = shutil.which("ssh", path=os.pathsep.join(own))
    if found is None or procs.which("ssh-keygen") is None:
        raise HostError("no ssh client here: the lab is reached by nothing else", hint="install openssh-client")
    return found


def _is_a_lab_s(path: str) -> bool:
    return Path(path).parts[-3:] == ("artifacts", "lab", BIN)


def make_key(into: Path) -> str:
    """Have the lab's own key in a folder, which nobody else can read; returns its public half."""
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    into.chmod(0o700)
    if public_key(into) == "":
        (into / KEY).unlink(missing_ok=True)
        procs.capture([*KEYGEN, str(into / KEY)])
    return public_key(into)


def public_key(there: Path) -> str:
    """The public half of the lab's key; "" if there is none."""
    file = there / f"{KEY}.pub"
    return file.read_text(encoding="utf-8") if file.is_file() and (there / KEY).is_file() else ""


def host_key(scratch: Path) -> tuple[bytes, str]:
    """A new host key: its private half, and its public half without a comment."""
    procs.capture([*KEYGEN, str(scratch / "host")])
    private, public = (scratch / "host").read_bytes(), (scratch / "host.pub").read_text(encoding="utf-8")
    for name in ("host", "host.pub"):
        (scratch / name).unlink()
    return private, " ".join(public.split()[:2])


def write(into: Path, ssh: str, hosts: Mapping[str, str]) -> None:
    """Write known hosts, configuration and the lab's `ssh`; `hosts` are public host keys by address."""
    write_whole(into / KNOWN, "".join(f"{address} {key}\n" for address, key in hosts.items()), mode=0o600)
    write_whole(into / CONFIG, config(into, hosts), mode=0o600)
    wrapper = f'#!/bin/sh\nexec {shlex.quote(ssh)} -F {shlex.quote(str(into / CONFIG))} "$@"\n'
    write_whole(into / BIN / "ssh", wrapper, mode=0o700)


def config(there: Path, addresses: Mapping[str, str]) -> str:
    """ssh_config(5) for the lab's addresses; every other host is left to the person's and the system's."""
    spoken = str(there).replace("%", "%%")
    ours = [
        "User root",
        f'IdentityFile "{spoken}/{KEY}"',
        "IdentitiesOnly yes",
        "IdentityAgent none",
        f'UserKnownHostsFile "{spoken}/{KNOWN}"',
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "UpdateHostKeys no",
        "BatchMode yes",
        "ConnectTimeout 10",
        "ServerAliveInterval 15",
        "LogLevel ERROR",
    ]
    others = ["Include ~/.ssh/config", "Include /etc/ssh/ssh_config"]
    names = list(addresses)
    blocks = [("Host " + " ".join(names), ours), ("Host * " + " ".join(f"!{name}" for name in names), others)]
    return "\n".join(line for head, lines in blocks for line in (head, *(f"    {line}" for line in lines))) + "\n"
