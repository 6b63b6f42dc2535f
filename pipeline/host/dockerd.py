"""Starts the Docker engine of this machine, even if a killed one left files behind. Runs as root."""

import shutil
from pathlib import Path

from pipeline.core import procs
from pipeline.core.errors import HostError
from pipeline.core.log import Log, step
from pipeline.core.waiting import wait_until
from pipeline.host.endpoint import SOCKET, engine_info

RUN_FOLDER = Path("/run")
DAEMON_JSON = Path("/etc/docker/daemon.json")
OUTPUT_FILE = Path("/var/log/dockerd.log")
START_TIMEOUT_S = 90


def has_systemd() -> bool:
    """Returns whether systemd manages the services of this machine (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def start_command() -> str:
    """Returns the command line for what start_engine() does."""
    if has_systemd():
        return "systemctl start docker"
    return f"setsid --fork dockerd </dev/null >>{OUTPUT_FILE} 2>&1"


def start_engine(log: Log, run: Path = RUN_FOLDER) -> None:
    """Starts the engine, unless one answers or is starting, and waits until it answers.

    Only one process may call this at a time. Raises HostError with the engine's last output if it does not answer.
    """
    if _engine_answers():
        return
    with step(log, "starting the Docker engine"):
        try:
            _launch(log, run)
        except procs.ProgramError as error:
            raise HostError(f"the Docker engine does not start: {error}\n{_last_output()}") from error
        if not wait_until(_engine_answers, timeout_s=START_TIMEOUT_S, interval_s=0.5, log=log, title="Docker engine"):
            raise HostError(f"dockerd does not answer at {SOCKET}\n{_last_output()}")


def _launch(log: Log, run: Path) -> None:
    if has_systemd():
        procs.run(["systemctl", "reset-failed", "docker"], log=log)
        procs.run(["systemctl", "start", "docker"], log=log)
    elif not _names_live_process(run / "docker.pid", "dockerd"):
        remove_leftovers(log, run)
        start = f"exec dockerd </dev/null >>{OUTPUT_FILE} 2>&1"
        procs.run(["setsid", "--fork", "sh", "-c", start], log=log, inherit=procs.NETWORK)


def remove_leftovers(log: Log, run: Path = RUN_FOLDER) -> None:
    """Removes what keeps dockerd from starting: pid files whose process has ended or is another program now.

    A containerd that outlived its dockerd stays; the next dockerd takes it over. Containers and networks stay, too;
    dockerd repairs them when it starts.
    """
    for file, program in ((run / "docker.pid", "dockerd"), (run / "docker/containerd/containerd.pid", "containerd")):
        if file.exists() and not _names_live_process(file, program):
            log.line(f"{file}: left behind by a {program} that is gone; removed")
            file.unlink()
            for socket in file.parent.glob("containerd*.sock*") if program == "containerd" else ():
                socket.unlink()
    socket = run / "docker.sock"
    if socket.is_dir():  # a container mounted the socket while no engine ran
        log.line(f"{socket}: a folder where the engine's socket belongs; removed")
        shutil.rmtree(socket)


def _engine_answers() -> bool:
    info, _ = engine_info("")
    return info is not None


def _read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _names_live_process(file: Path, program: str) -> bool:
    """Returns whether the process that a pid file names is alive and is that program, since numbers are reused."""
    pid = _read_pid(file)
    try:
        return pid is not None and Path(f"/proc/{pid}/comm").read_text().strip() == program and not _is_zombie(pid)
    except OSError:
        return False


def _is_zombie(pid: int) -> bool:
    """Returns whether a process has ended and only waits to be reaped (state Z, proc_pid_stat(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}


def _last_output() -> str:
    if has_systemd():
        return procs.capture(["journalctl", "-u", "docker", "-n", "10", "--no-pager", "-o", "cat"]).rstrip()
    return "\n".join(OUTPUT_FILE.read_text(errors="replace").splitlines()[-10:]) if OUTPUT_FILE.exists() else ""


def is_installed() -> bool:
    """Returns whether this machine has a dockerd, from whatever source."""
    return procs.which("dockerd") is not None
