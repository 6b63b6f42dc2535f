"""The machines that era checks work on: docker's command line for each, and the removal of every container there.

A launcher's own commands make these containers, so that they do not have a name of ours. They have a label, which is
among the operator's docker arguments.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from pipeline.config.launcher_contract import CONTAINER_NAME
from pipeline.core import procs
from pipeline.core.attempt_error import AttemptError
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.log import ForwardingLog, Log, NullLog
from pipeline.core.procs import ProgramError
from pipeline.core.waiting import wait_until
from pipeline.host.engine import LABEL
from pipeline.smoke.containers import CommandResult
from pipeline.smoke.verdict import describe_exit, last_lines

ERA_LABEL = f"{LABEL}=eras"
DAY_S = 86400
COMMAND_TIMEOUT_S = 300
REMOVAL_TIMEOUT_S = 60
# Messages of `docker logs` itself, and procs' own line about the command.
NOT_OUTPUT = re.compile(r"^\$ .* logs --follow |^Error response from daemon: (No such container|can not get logs)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMachine:
    """A machine that takes part in a cluster."""

    name: str
    docker: tuple[str, ...]
    """The docker command, with the options that lead to the machine's engine."""
    address: str
    """Its address on the cluster's network."""
    image: str
    """The image as the machine's engine knows it."""


class DockerHost:
    """A machine's Docker engine, as a launcher uses it; the log has every docker command."""

    def __init__(self, machine: ClusterMachine, env: Mapping[str, str], log: Log, *, emulated: bool = False) -> None:
        self.machine = machine
        self._emulated = emulated
        self._env = env
        self._log = log
        self._container = ""
        self._run_command: tuple[str, ...] = ()
        self._output = NullLog()
        self._follower: threading.Thread | None = None

    def docker(
        self,
        words: Sequence[str],
        *,
        timeout_s: float = COMMAND_TIMEOUT_S,
        quiet: bool = False,
        tidying: bool = False,
    ) -> CommandResult:
        """Runs docker with these words, whatever its exit status; `quiet` keeps it from the log.

        Raises Cancelled (unless `tidying`), and HostError if docker itself cannot be run.
        """
        lines = _NamedLog(self._log, f"{self.machine.name}: ")
        argv = [*self.machine.docker, *words]
        try:
            output = procs.run(
                argv, log=lines, inherit=procs.DOCKER, env=self._env, timeout_s=timeout_s, quiet=quiet, tidying=tidying
            )
        except ProgramError as error:
            return CommandResult(error.status, error.output, self._emulated)
        except (Cancelled, HostError):
            raise
        except TandemError as error:
            return CommandResult(None, str(error), self._emulated)
        return CommandResult(0, output, self._emulated)

    def must(self, words: Sequence[str], failure: str, *, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Returns the output of docker with these words. Raises AttemptError with `failure` unless its status is 0."""
        result = self.docker(words, timeout_s=timeout_s)
        if result.status != 0:
            reason = f"{last_lines(result.output)} ({describe_exit(result.status)})"
            raise AttemptError(f"{self.machine.name}: {failure}: {reason}", crashed=result.crashed)
        return result.output.strip()

    def launch(self, words: Sequence[str]) -> None:
        """Runs a launcher's `docker run`, and records its container's output from then on. Raises AttemptError."""
        self._run_command, self._output = tuple(words), NullLog()
        result = self.docker(words)
        if result.status != 0:
            raise AttemptError(f"{self.machine.name}: the container does not start: {last_lines(result.output)}")
        self._container = result.output.strip().splitlines()[-1]
        self._follower = threading.Thread(target=self._follow, args=(self._container, self._output), daemon=True)
        self._follower.start()

    def _follow(self, container: str, output: NullLog) -> None:
        argv = [*self.machine.docker, "logs", "--follow", container]
        with suppress(TandemError):  # it ends with its container
            procs.run(argv, log=output, inherit=procs.DOCKER, env=self._env, timeout_s=DAY_S)

    def output(self) -> str:
        """Returns the output of the container's first process so far, as `docker logs` shows it."""
        return "\n".join(
            line for text in self._output.lines for line in text.splitlines() if not NOT_OUTPUT.search(line)
        )

    def is_running(self) -> bool:
        """Tells whether the container runs."""
        result = self.docker(["inspect", "--format", "{{.State.Running}}", self._container])
        return result.status == 0 and result.output.strip() == "true"

    def last_output(self) -> str:
        """Returns the output of a container that has ended; runs it again if it ended before it could be heard."""
        if self._follower:
            self._follower.join(REMOVAL_TIMEOUT_S)
        if not self.output():
            words = [word for word in self._run_command if word != "-d"]
            self._output.line(self.docker(words, timeout_s=REMOVAL_TIMEOUT_S).output)
        return self.output()

    def clear(self) -> None:
        """Removes every container that was started here, with its volumes, after an interruption too."""
        # A container that has ended removes itself, which takes a moment.
        wait_until(self._remove_ours, timeout_s=REMOVAL_TIMEOUT_S, interval_s=0.2, tidying=True)
        if self._follower:
            self._follower.join(REMOVAL_TIMEOUT_S)

    def _remove_ours(self) -> bool:
        """Removes the containers with our label; tells whether there was none."""
        ids = self._ours()
        if ids:
            self.docker(["rm", "--force", "--volumes", *ids], timeout_s=REMOVAL_TIMEOUT_S, tidying=True)
        return not ids

    def _ours(self) -> list[str]:
        """Returns the ids of the containers with our label. Raises HostError."""
        result = self.docker(["ps", "-aq", "--no-trunc", "--filter", f"label={ERA_LABEL}"], tidying=True)
        if result.status != 0:
            raise HostError(f"{self.machine.name}: its Docker engine does not answer: {last_lines(result.output)}")
        return result.output.split()

    def sweep(self) -> None:
        """Removes what a killed run left behind.

        Raises HostError if the machine has a container of the launcher's name that is not ours.
        """
        if ids := self._ours():
            self.docker(["rm", "--force", "--volumes", *ids])
            self._log.line(f"{self.machine.name}: removed {len(ids)} containers of an earlier run")
        if volumes := self.docker(["volume", "ls", "-q", "--filter", f"label={ERA_LABEL}"]).output.split():
            self.docker(["volume", "rm", "--force", *volumes])
        others = self.docker(["ps", "-aq", "--filter", f"name=^/{CONTAINER_NAME}$"]).output.split()
        if others:
            raise HostError(
                f"{self.machine.name} already has a container {CONTAINER_NAME}, which no check started",
                hint=f"stop that cluster, or `docker rm -f {others[0]}` there",
            )


class _NamedLog(ForwardingLog):
    """Passes the first line of each text on, under a name."""

    def __init__(self, log: Log, name: str) -> None:
        super().__init__(log)
        self._name = name

    def line(self, text: str) -> None:
        first, _, rest = text.partition("\n")
        super().line(self._name + first + (" …" if rest else ""))

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Does nothing: docker's own progress is not shown."""


def unique_word(prefix: str) -> str:
    """Returns a word that occurs nowhere else."""
    return f"{prefix}-{uuid4().hex[:12]}"
