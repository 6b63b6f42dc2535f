"""Registers the user-mode emulator with the kernel, if no service manager has done it. Runs as root.

Formats: binfmt.d(5), https://docs.kernel.org/admin-guide/binfmt-misc.html
"""

import contextlib
import os
import shlex
from pathlib import Path

from pipeline.core import platforms, procs
from pipeline.core.errors import HostError, TandemError
from pipeline.core.log import Log
from pipeline.host.needs import BINFMT_FOLDER

RULES_FOLDER = Path("/usr/lib/binfmt.d")
MOUNT_COMMAND = ("mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT_FOLDER))


def kernel_rule(platform: str, rules: Path = RULES_FOLDER) -> str:
    """Returns the line for the kernel from the emulator's package; "" if the package is not installed.

    Adds flag F if it is missing: without it, each container would need the emulator in it.
    """
    file = rules / f"{_rule_name(platform)}.conf"
    if not file.is_file():
        return ""
    line = next(line for line in file.read_text().splitlines() if line.startswith(":"))
    return line if "F" in line.rpartition(":")[2] else line + "F"


def is_mounted(folder: Path = BINFMT_FOLDER) -> bool:
    """Returns whether the kernel's register is mounted on that folder."""
    return (folder / "register").exists()


def mount_register(log: Log) -> bool:
    """Mounts the register if it is not mounted; returns whether it did. Raises HostError if the kernel has none."""
    import ctypes

    if is_mounted():
        return False
    if not BINFMT_FOLDER.is_dir():
        with contextlib.suppress(TandemError):  # without the module, the mount below fails with a message
            procs.run(["modprobe", "binfmt_misc"], log=log)
    log.line(f"$ {shlex.join(MOUNT_COMMAND)}")
    # By the system call, mount(2): the package of the program `mount` may not be installed.
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.mount(b"binfmt_misc", str(BINFMT_FOLDER).encode(), b"binfmt_misc", 0, None):
        reason = os.strerror(ctypes.get_errno())
        raise HostError(
            f"binfmt_misc cannot be mounted on {BINFMT_FOLDER}: {reason}",
            hint="emulation needs it",
        )
    return True


def register_emulator(platform: str, log: Log) -> None:
    """Registers the emulator for a platform, in place of an entry of the same name.

    Raises HostError if its package is not installed.
    """
    line = kernel_rule(platform)
    if not line:
        raise HostError(f"no rule {_rule_name(platform)}.conf in {RULES_FOLDER}", hint="install qemu-user-binfmt")
    log.line(f"registering {_rule_name(platform)} with the kernel")
    entry = BINFMT_FOLDER / _rule_name(platform)
    if entry.exists():
        entry.write_text("-1")
    (BINFMT_FOLDER / "register").write_text(line)


def register_command(platform: str) -> str:
    """Returns the command line for what register_emulator() does."""
    mounted = "" if is_mounted() else shlex.join(MOUNT_COMMAND) + " && "
    return f"{mounted}grep -h ^: {RULES_FOLDER}/{_rule_name(platform)}.conf >{BINFMT_FOLDER}/register"


def _rule_name(platform: str) -> str:
    """Returns the name of the rule in QEMU's package, as in qemu-aarch64."""
    return f"qemu-{platforms.machine_of(platform)}"
