"""Which process made something that can outlive it, and whether that process is gone."""

import os
from pathlib import Path


def current_owner() -> str:
    """This process, told apart from every other one: PID namespace, PID, start time."""
    return f"{_namespace()} {os.getpid()} {_start('self')}"


def is_gone(whose: str) -> bool:
    """Whether the process that owner() named is gone; one of another PID namespace cannot be seen, and lives."""
    namespace, pid, start = (*whose.split(), "", "", "")[:3]
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
