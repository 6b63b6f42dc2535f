"""How ssh finds the lab: keys, known hosts and configuration below artifacts/lab, and an `ssh` that uses them.

Both the docker client and the SDK call the `ssh` of PATH, and neither passes options on. So the lab has an `ssh` of its
own, in a folder that comes first on PATH. For other hosts it reads the user's own configuration, as usual.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.core import procs
from pipeline.core.errors import HostError
from pipeline.core.files import write_whole

KEY, KNOWN_HOSTS, CONFIG, BIN = "id_ed25519", "known_hosts", "config", "bin"
UNUSABLE = re.compile(r"""["\\:\x00-\x1f\x7f]|\$\{""")
"""Text that no path may hold: it cannot be quoted in ssh_config(5), or it separates the folders of PATH."""
KEYGEN = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tandem lab", "-f")


def files_folder(root: Path) -> Path:
    """Returns the folder of the files of a checkout's lab."""
    return root / "artifacts" / "lab"


def find_programs(folder: Path) -> str:
    """Returns the path of this machine's own ssh, never that of a lab.

    Raises HostError if ssh or ssh-keygen is missing, or if ssh cannot use the path of the lab's files, `folder`.
    """
    if unusable := UNUSABLE.search(str(folder)):
        raise HostError(
            f"{folder}: neither PATH nor ssh can use a folder with {unusable[0]!r} in its name",
            hint="move the checkout to a path without it",
        )
    folders = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if not _belongs_to_lab(part)]
    program = shutil.which("ssh", path=os.pathsep.join(folders))
    if program is None or procs.which("ssh-keygen") is None:
        raise HostError(
            "there is no ssh client on this machine, and the lab is reached by ssh only", hint="install openssh-client"
        )
    return program


def _belongs_to_lab(path: str) -> bool:
    return Path(path).parts[-3:] == ("artifacts", "lab", BIN)


def make_key(folder: Path) -> str:
    """Makes the lab's own key unless it exists, in a folder for this user only; returns the public half."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if public_key(folder) == "":
        (folder / KEY).unlink(missing_ok=True)
        procs.capture([*KEYGEN, str(folder / KEY)])
    return public_key(folder)


def public_key(folder: Path) -> str:
    """Returns the public half of the lab's key; empty if there is no key."""
    file = folder / f"{KEY}.pub"
    return file.read_text(encoding="utf-8") if file.is_file() and (folder / KEY).is_file() else ""


def make_host_key(scratch: Path) -> tuple[bytes, str]:
    """Makes a host key; returns the private half, and the public half without its comment."""
    procs.capture([*KEYGEN, str(scratch / "host")])
    private, public = (scratch / "host").read_bytes(), (scratch / "host.pub").read_text(encoding="utf-8")
    for name in ("host", "host.pub"):
        (scratch / name).unlink()
    return private, " ".join(public.split()[:2])


def write_files(folder: Path, program: str, host_keys: Mapping[str, str]) -> None:
    """Writes known hosts, configuration and the lab's `ssh`, which runs `program`; public host keys are by address."""
    write_whole(folder / KNOWN_HOSTS, "".join(f"{address} {key}\n" for address, key in host_keys.items()), mode=0o600)
    write_whole(folder / CONFIG, ssh_config(folder, host_keys), mode=0o600)
    wrapper = f'#!/bin/sh\nexec {shlex.quote(program)} -F {shlex.quote(str(folder / CONFIG))} "$@"\n'
    write_whole(folder / BIN / "ssh", wrapper, mode=0o700)


def ssh_config(folder: Path, addresses: Iterable[str]) -> str:
    """Returns the ssh_config(5) for the lab's addresses; other hosts have the user's and the system's own."""
    escaped = str(folder).replace("%", "%%")
    ours = [
        "User root",
        f'IdentityFile "{escaped}/{KEY}"',
        "IdentitiesOnly yes",
        "IdentityAgent none",
        f'UserKnownHostsFile "{escaped}/{KNOWN_HOSTS}"',
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
