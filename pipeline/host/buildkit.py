"""Runs one build with BuildKit, through buildx and python-on-whales. It always ends, in time or with an error."""

import json
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core import procs
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.log import Log
from pipeline.host import endpoint

if TYPE_CHECKING:
    from python_on_whales import DockerClient

TIMEOUT_S = 1800
TRANSFER_TITLE = "handing the layers to BuildKit"
STEP = re.compile(r"^#\d+ ")
TRANSFER = re.compile(r"^#\d+ transferring context: ([\d.]+)(B|kB|MB|GB)")
UNIT_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
EXPORT_OPTIONS = {
    "type": "image",
    "oci-mediatypes": "true",
    "compression": "zstd",
    "compression-level": "3",
    "unpack": "true",
}


def build_image(
    context: Path,
    *,
    platform: str,
    epoch: int,
    labels: Mapping[str, str],
    tag: str,
    log: Log,
    cache: bool = True,
    recompress: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Builds the Dockerfile in a folder into the engine's image store under a tag; returns the manifest's digest.

    There is no network and no provenance; history and config are dated `epoch`. The layers of a base image are
    compressed again unless `recompress` is false: then they stay as its registry has them.
    Raises TandemError with BuildKit's reason, or at the time-out; HostError without docker; Cancelled.
    """
    from python_on_whales import DockerException

    metadata, running = context.parent / "metadata.json", context.parent / "running"
    size = sum(file.stat().st_size for file in context.iterdir())
    lines = _client(running).buildx.build(
        context,
        platforms=[platform],
        build_args={"SOURCE_DATE_EPOCH": str(epoch)},
        labels=dict(labels),
        network="none",
        provenance=False,
        cache=cache,
        builder=endpoint.docker_context(),
        output={"name": tag, **EXPORT_OPTIONS, "force-compression": "true" if recompress else "false"},
        metadata_file=metadata,
        progress="plain",
        stream_logs=True,
    )
    assert isinstance(lines, Iterator)
    try:
        _follow(lines, running, log, size, timeout_s)
    except DockerException as error:
        raise build_failure(str(error.stderr or error), tag) from error
    digest = json.loads(metadata.read_text(encoding="utf-8")).get("containerimage.digest")
    if not digest:
        raise HostError(f"{tag}: buildx names no digest", hint="./doitw host says which buildx is needed")
    return str(digest)


def _client(running: Path) -> "DockerClient":
    """Returns a client whose program writes its process id to a file, because python-on-whales has no time-outs.

    It takes no environment either. So the variables that docker must not inherit are removed by name, which keeps
    their values out of its arguments.
    """
    from python_on_whales import DockerClient

    script = f'umask {procs.UMASK:03o}; echo $$ >"$0" && [ ! -e "$0.not" ] && exec docker "$@"'
    without = [word for name in procs.uninherited_variables(procs.DOCKER) for word in ("-u", name)]
    fixed = [f"{name}={value}" for name, value in procs.FIXED.items()]
    return DockerClient(client_call=["env", *without, *fixed, "sh", "-c", script, str(running)])


def _follow(lines: Iterator[str], running: Path, log: Log, size: int, timeout_s: float) -> None:
    """Passes lines on to the log until they end. After a second without one, logs progress of the newest line."""
    inbox: queue.Queue[str | BaseException | None] = queue.Queue()
    threading.Thread(target=_read, args=(lines, inbox), daemon=True).start()
    began = since = time.monotonic()
    doing = "BuildKit"
    ended = False
    try:
        while True:
            try:
                line = inbox.get(timeout=1)
            except queue.Empty:
                log.progress(doing, time.monotonic() - since, None, "s")
            else:
                ended = line is None or isinstance(line, BaseException)
                if line is None:
                    return
                if isinstance(line, BaseException):
                    raise line
                doing, since = show_line(line.rstrip(), doing, log, size), time.monotonic()
            if procs.cancelled():
                raise Cancelled("interrupted")
            if time.monotonic() - began > timeout_s:
                raise TandemError(f"BuildKit did not end within {timeout_s:g} s, last at: {doing}")
    finally:
        if not ended:
            _end(running)  # also if the log raises Cancelled


def _read(lines: Iterator[str], inbox: "queue.Queue[str | BaseException | None]") -> None:
    try:
        for line in lines:
            inbox.put(line)
        inbox.put(None)
    except BaseException as error:  # any error goes to the other thread, which waits for it
        inbox.put(error)


def show_line(line: str, doing: str, log: Log, size: int) -> str:
    """Logs a line of BuildKit; returns what BuildKit is doing now, in its own words."""
    if not line:
        return doing
    log.line(line)
    if transfer := TRANSFER.match(line):
        log.progress(TRANSFER_TITLE, float(transfer[1]) * UNIT_BYTES[transfer[2]], size, "B")
        return TRANSFER_TITLE
    text = STEP.sub("", line)
    return doing if text.startswith(("DONE", "CACHED", "sha256:")) else text


def _end(running: Path) -> None:
    running.with_name(f"{running.name}.not").touch()  # a program that has not written its id yet will see this file
    with suppress(ValueError, FileNotFoundError, ProcessLookupError):
        os.kill(int(running.read_text(encoding="utf-8")), signal.SIGTERM)


def build_failure(stderr: str, tag: str) -> TandemError:
    """Returns an error with the reason that BuildKit or the docker program gave."""
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else "\n".join(stderr.strip().splitlines()[-3:])
    reason = reason.removeprefix("failed to solve: ")
    if "docker: not found" in stderr or "is not a docker command" in stderr:
        return HostError(f"{tag} cannot be built: {reason}", hint="./doitw host says what is missing")
    if "no space left on device" in reason:
        return TandemError(f"{tag}: no space left on the engine's disk", hint="docker system df says what takes it")
    if "connect to the Docker daemon" in reason:
        return HostError(f"{tag}: no Docker engine answers", hint="./doitw host says what is missing")
    return TandemError(f"{tag}: BuildKit says: {reason}")
