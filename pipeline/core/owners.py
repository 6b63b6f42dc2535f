"""Names the process that made something which can outlive it, and tells whether that process has ended."""

import os
from pathlib import Path


def current_owner() -> str:
    """Returns the name of this process, which no other process has: "PID-namespace PID start-time"."""
    return f"{_namespace()} {os.getpid()} {_start('self')}"


def is_gone(owner: str) -> bool:
    """Returns whether the process that current_owner() named has ended.

    A process of another PID namespace cannot be seen from here, and counts as alive.
    """
    namespace, pid, start = (*owner.split(), "", "", "")[:3]
    if namespace != _namespace() or not pid.isdecimal():
        return False
    try:
        return _start(pid) != start
    except OSError:
        return True


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _start(pid: str) -> str:
    # proc_pid_stat(5): the 22nd word, the 20th after the name, which may hold anything.
    return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
