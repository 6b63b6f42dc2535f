"""The first process of a node's container: starts Ray, then the engine on a signal, and ends when one of them ends.

`python3 serve_node.py JSON` takes {"ray": argv or null, "serve": argv or null}. In an argv, "@address@" stands for the
node's own address. The engine starts once the file `go` lies beside this one.

`secrets/serve.json` beside this file, if it exists, is {"env": {name: value}, "words": {mark: value}}: variables for
Ray and the engine, and parts of the engine's argv by the mark that stands in their place. `docker inspect` shows none.
"""

import json
import os
import re
import resource
import signal
import socket
import subprocess  # noqa: TID251  # inside an image there is no pipeline.core.procs
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

GO = Path(__file__).with_name("go")
SECRETS = Path(__file__).with_name("secrets") / "serve.json"
STARTED = "Ray runtime started"
# Ray's code gives its raylet 30 s (ray/_private/node.py), which a busy machine may exceed.
TOO_SLOW = "timed out during startup"
ATTEMPTS = 4
STOP_GRACE_S = 2.0
SHIM = Path(__file__).with_name("emulation") / "patience.c"
"""It exists only where an emulator runs the node."""


def say(text: str) -> None:
    """Prints a line of our own to the container's log."""
    print(f"tandem: {text}", flush=True)


def main(plan: dict[str, list[str] | None]) -> int:
    """Runs the plan; returns the exit status of the program that ended first."""
    signal.signal(signal.SIGTERM, _stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    address = os.environ.get("VLLM_HOST_IP") or socket.gethostbyname(socket.gethostname())
    os.environ.update(VLLM_HOST_IP=address, RAY_NODE_IP_ADDRESS=address, RAY_OVERRIDE_NODE_IP_ADDRESS=address)
    say(f"node {address}, {hard} open files (soft limit was {soft})")
    if SHIM.exists():
        preload(SHIM)
    secrets = json.loads(SECRETS.read_text()) if SECRETS.exists() else {"env": {}, "words": {}}
    os.environ.update(secrets["env"])
    running: dict[int, str] = {}
    if plan["ray"] is not None:
        ray = start_ray(filled(plan["ray"], {"@address@": address}))
        if ray is None:
            return 70
        running[ray.pid] = "ray"
        say("ray is up")
    if plan["serve"] is not None:
        wait_for_go(running)
        argv = filled(plan["serve"], {"@address@": address, **secrets["words"]})
        say("engine starts")
        running[subprocess.Popen(argv).pid] = "engine"
    return outlive(running)


def filled(argv: list[str], marks: dict[str, str]) -> list[str]:
    """Returns an argv with values in place of their marks."""
    if not marks:
        return list(argv)
    # At once: a value that looks like a mark stays as it is.
    pattern = re.compile("|".join(map(re.escape, marks)))
    return [pattern.sub(lambda match: marks[match[0]], word) for word in argv]


def preload(source: Path) -> None:
    """Compiles the C source, and preloads the library into every process that starts from here, Ray's workers too."""
    library = source.with_suffix(".so")
    try:
        subprocess.run(["gcc", "-O1", "-fPIC", "-shared", "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        say(f"without {source.name}: {error}; processes that wait for other nodes occupy a processor")
        return
    # Without the second variable, the raylet removes LD_PRELOAD from its workers' environment (seen with Ray 2.60).
    os.environ.update(
        LD_PRELOAD=":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD")))), RAY_LD_PRELOAD_ON_WORKERS="1"
    )


def start_ray(argv: list[str]) -> "subprocess.Popen[str] | None":
    """Starts `ray start --block`, and returns its process once its node is up; None if it does not start."""
    for attempt in range(1, ATTEMPTS + 1):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        slow = False
        for line in process.stdout:
            print(line, end="", flush=True)
            slow = slow or TOO_SLOW in line
            if STARTED in line:
                pass_on(process)
                return process
        say(f"ray start ended with status {process.wait()} (attempt {attempt} of {ATTEMPTS})")
        clear()
        if not slow:
            return None
    return None


def pass_on(process: "subprocess.Popen[str]") -> None:
    """Prints the further output of the process in a thread, so that its pipe never fills."""
    from threading import Thread

    assert process.stdout is not None
    lines = process.stdout

    def pump() -> None:
        for line in lines:
            print(line, end="", flush=True)

    Thread(target=pump, daemon=True).start()


def clear() -> None:
    """Kills what a failed start left behind: as process 1 it reaches every other process, and not itself."""
    if os.getpid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def wait_for_go(running: dict[int, str]) -> None:
    """Waits until the file exists; ends this process if Ray ends meanwhile."""
    while not GO.exists():
        for pid in running:
            if os.waitpid(pid, os.WNOHANG)[0]:
                say(f"{running[pid]} ended")
                sys.exit(71)
        time.sleep(0.2)


def outlive(running: dict[int, str]) -> int:
    """Waits until one of them ends, and reaps orphans meanwhile; never returns 0."""
    while True:
        pid, status = os.wait()
        if pid in running:
            code = os.waitstatus_to_exitcode(status)
            say(f"{running[pid]} ended with status {code}")
            return code if code > 0 else 72


def _stop(_number: int, _frame: FrameType | None) -> None:
    say("stopping")
    if os.getpid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGTERM)
        time.sleep(STOP_GRACE_S)
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
