"""Tries an image's ENTRYPOINT with a command that reports how it was run.

Launchers of the first eras keep the ENTRYPOINT. It must run the command that it is given with its arguments, folder and
environment unchanged, and the command must get the container's signals; whether it is the container's first process or
a child of an init program does not matter.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeline.config.launcher_contract import ROOT_USERS
from pipeline.core.log import Log
from pipeline.core.waiting import wait_until
from pipeline.smoke.containers import PROBE_FOLDER, ContainerError, ContainerFactory, EngineError, ProbeContainer
from pipeline.smoke.probe import ATTEMPTS, ProbeAnswer
from pipeline.smoke.verdict import describe_exit, emulator_crashed

MARK = "@@entrypoint "
SCRIPT = f"{PROBE_FOLDER}/entrypoint_report.sh"
ARGUMENTS = ("two words", "a \"quoted\" 'word'", "two\nlines", "*", "$HOME", "back\\slash", "")
ENV = {"VLLM_HOST_IP": "10.0.0.1", "TANDEM_TEXT": "two words"}
"""Given to the container, as launchers give it variables; the command must see them."""
START_TIMEOUT_S = 60
SIGNAL_TIMEOUT_S = {False: 10, True: 60}
"""Seconds until the command must have got a signal, without and with an emulator."""
REMEDY = 'have none, or one that ends in exec "$@"'


@dataclass(frozen=True, slots=True)
class EntrypointRun:
    """What is known of one run of the command under the ENTRYPOINT."""

    reports: Sequence[tuple[str, str]]
    """Names and values that the command has reported, in order; newlines and backslashes are escaped."""
    state: str
    """What the container did instead, in words, if the command has reported nothing."""
    crashed: bool
    """The emulator crashed."""

    def value(self, name: str) -> str:
        """Returns the last value that was reported under this name; empty if there is none."""
        return next((value for other, value in reversed(self.reports) if other == name), "")


def try_entrypoint(factory: ContainerFactory, log: Log) -> ProbeAnswer:
    """Answers with the faults of the image's ENTRYPOINT; tries again if the emulator crashes."""
    config = factory.description()["Config"] or {}
    workdir = config.get("WorkingDir") or "/"
    entrypoint = config.get("Entrypoint") or []
    if not entrypoint or entrypoint == [""]:
        return ProbeAnswer([])
    words = f"ENTRYPOINT {shlex.join(entrypoint)}"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            run = _run(factory, workdir)
        except EngineError as error:
            return ProbeAnswer([f"{words} cannot be tried: {error}"])
        except ContainerError as error:
            return ProbeAnswer([f"{words}: {error}; {REMEDY}"])
        if not run.crashed:
            return ProbeAnswer([f"{words} {fault}; {REMEDY}" for fault in find_faults(run, config)])
        log.line(f"entrypoint: the emulator crashed (attempt {attempt} of {ATTEMPTS})")
    return ProbeAnswer(crashed=True)


def _run(factory: ContainerFactory, workdir: str) -> EntrypointRun:
    """Runs the command under the ENTRYPOINT, and sends the container SIGTERM once it has reported."""
    command = ["bash", SCRIPT, *ARGUMENTS]
    env = {**ENV, "TANDEM_WORKDIR": workdir}
    with factory.start("entrypoint", command=command, env=env, entrypoint=True) as container:
        wait_until(lambda: _has_reported(container, "ready"), timeout_s=START_TIMEOUT_S, interval_s=0.5)
        if any(name == "ready" for name, _ in _reports(container)):
            _send_sigterm(container)
            timeout_s = SIGNAL_TIMEOUT_S[factory.emulated]
            wait_until(lambda: _has_reported(container, "signal"), timeout_s=timeout_s, interval_s=0.2)
        reports, output = _reports(container), container.output()
        status = container.container.attrs["State"]["ExitCode"]
        crashed = emulator_crashed(status, output, emulated=factory.emulated) and not reports
        return EntrypointRun(reports, "" if reports else _describe_state(container, output), crashed)


def _send_sigterm(container: ProbeContainer) -> None:
    from docker.errors import APIError

    with suppress(APIError):  # it may have ended meanwhile, which the report tells
        container.container.kill(signal="SIGTERM")


def _has_reported(container: ProbeContainer, name: str) -> bool:
    """Tells whether the command has reported something under this name, or the container has ended."""
    container.container.reload()
    ended = not container.container.attrs["State"]["Running"]
    return any(other == name for other, _ in _reports(container)) or ended


def _reports(container: ProbeContainer) -> list[tuple[str, str]]:
    lines = [line.removeprefix(MARK) for line in container.output().splitlines() if line.startswith(MARK)]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def _describe_state(container: ProbeContainer, output: str) -> str:
    state = container.container.attrs["State"]
    if not state["Running"]:
        last = " / ".join(output.strip().splitlines()[-2:])
        return f"the container ended with {describe_exit(state['ExitCode'])} ({last})"
    first = next((args for pid, args in container.top("pid,args") if int(pid) == state["Pid"]), "")
    return f"the container runs `{first}`"


def find_faults(run: EntrypointRun, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields in what the command was run differently from what the launcher asked for.

    `config` is the image's own (Config of the engine's description).
    """
    if not run.reports:
        yield f"ignores the command it is given: {run.state}"
        return
    arguments = [value for name, value in run.reports if name == "argument"]
    wanted = [argument.replace("\\", "\\\\").replace("\n", "\\n") for argument in ARGUMENTS]
    if arguments != wanted:
        first = next((pair for pair in zip(wanted, arguments, strict=False) if pair[0] != pair[1]), None)
        example = f": {first[0]!r} arrives as {first[1]!r}" if first else f": {len(wanted)} arrive as {len(arguments)}"
        yield f"changes the arguments of the command{example}"
    workdir = config.get("WorkingDir") or "/"
    if (folder := run.value("folder")) != workdir:
        yield f"runs the command in {folder}, not in WORKDIR {workdir}: ./run-cluster-node.sh would not be found"
    if run.value("user") != "0" and (config.get("User") or "") in ROOT_USERS:
        yield f"runs the command as user {run.value('user')}, not as root"
    for name, value in ENV.items():
        if run.value(name) != value:
            yield f"hides the variable {name} of the container from the command"
    if not run.value("signal"):
        parent = run.value("parent")
        yield f"does not pass signals on to the command, which runs below `{parent}`: `docker stop` has to kill it"
