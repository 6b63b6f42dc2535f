"""The machines that era checks work on: docker's own command line against each, and every container taken away again.

Containers here are not made by us but by a launcher's own words, so they have no name of ours; they are known by a
label among the operator's arguments.
"""

import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from pipeline.core import procs
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.log import Log
from pipeline.core.procs import ProgramError
from pipeline.host.engine import LABEL
from pipeline.smoke import era_commands
from pipeline.smoke.containers import Said
from pipeline.smoke.verdict import ending

OURS = f"{LABEL}=eras"
DAY = 86400
CLEARING = 60
# What `docker logs` says on its own account, and our own line about it.
NOT_ITS = re.compile(r"^\$ .* logs --follow |^Error response from daemon: (No such container|can not get logs)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One machine: its name, `docker` with what leads to its engine, its address, the image as that engine has it."""

    name: str
    docker: tuple[str, ...]
    address: str
    image: str


class Fault(Exception):
    """An era fails for this reason; `crashed`: the emulator did; `again`: fresh containers may do better."""

    def __init__(self, reason: str, *, crashed: bool = False, again: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed
        self.again = again


class Station:
    """An endpoint at work; every docker call goes to its log as it is made. `emulated`: an emulator runs the image."""

    def __init__(self, endpoint: Endpoint, env: Mapping[str, str], log: Log, *, emulated: bool = False) -> None:
        self.endpoint = endpoint
        self._emulated = emulated
        self._env = env
        self._log = log
        self._container = ""
        self._words: tuple[str, ...] = ()
        self._output = _Lines()
        self._follower: threading.Thread | None = None

    def docker(self, words: Sequence[str], *, within: float = 300, quiet: bool = False, tidying: bool = False) -> Said:
        """Run docker with these words; whatever docker says is no error, and kept from the log if `quiet`.

        Raises Cancelled (unless `tidying`), HostError.
        """
        lines = _Lines(self._log, f"{self.endpoint.name}: ")
        argv = [*self.endpoint.docker, *words]
        try:
            said = procs.run(
                argv, log=lines, hears=procs.DOCKER, env=self._env, within=within, quiet=quiet, tidying=tidying
            )
        except ProgramError as error:
            return Said(error.status, error.output, self._emulated)
        except (Cancelled, HostError):
            raise
        except TandemError as error:
            return Said(None, str(error), self._emulated)
        return Said(0, said, self._emulated)

    def must(self, words: Sequence[str], what: str, *, within: float = 300) -> str:
        """The output of docker with these words. Raises Fault, which begins with `what`, if it fails."""
        said = self.docker(words, within=within)
        if said.status != 0:
            why = f"{last(said.text)} ({ending(said.status)})"
            raise Fault(f"{self.endpoint.name}: {what}: {why}", crashed=said.crashed)
        return said.text.strip()

    def launch(self, words: Sequence[str]) -> None:
        """`docker run` in the words of a launcher; what its container says is kept from then on. Raises Fault."""
        self._words, self._output = tuple(words), _Lines()
        said = self.docker(words)
        if said.status != 0:
            raise Fault(f"{self.endpoint.name}: the container does not start: {last(said.text)}")
        self._container = said.text.strip().splitlines()[-1]
        self._follower = threading.Thread(target=self._follow, args=(self._container, self._output), daemon=True)
        self._follower.start()

    def _follow(self, container: str, output: "_Lines") -> None:
        argv = [*self.endpoint.docker, "logs", "--follow", container]
        with suppress(TandemError):  # it ends with its container
            procs.run(argv, log=output, hears=procs.DOCKER, env=self._env, within=DAY)

    def output(self) -> str:
        """What the container's first process has said, as `docker logs` shows it."""
        return "\n".join(line for line in self._output.text().splitlines() if not NOT_ITS.search(line))

    def alive(self) -> bool:
        """Whether the container still runs."""
        said = self.docker(["inspect", "--format", "{{.State.Running}}", self._container])
        return said.status == 0 and said.text.strip() == "true"

    def last_words(self) -> str:
        """What a container that has ended said; if it was gone too soon to be heard, what it says in front of us."""
        if self._follower:
            self._follower.join(CLEARING)
        if not self.output():
            words = [word for word in self._words if word != "-d"]
            self._output.line(self.docker(words, within=CLEARING).text)
        return self.output()

    def clear(self) -> None:
        """Remove every container that was started here, with its volumes; after an interruption too."""
        deadline = time.monotonic() + CLEARING
        while ids := self._ours():
            self.docker(["rm", "--force", "--volumes", *ids], within=CLEARING, tidying=True)
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)  # one that ends removes itself, which cannot be hurried
        if self._follower:
            self._follower.join(CLEARING)

    def _ours(self) -> list[str]:
        """Containers with our label. Raises HostError."""
        said = self.docker(["ps", "-aq", "--no-trunc", "--filter", f"label={OURS}"], tidying=True)
        if said.status != 0:
            raise HostError(f"{self.endpoint.name}: its Docker engine does not answer: {last(said.text)}")
        return said.text.split()

    def sweep(self) -> None:
        """Remove what a killed run left behind; refuse to work beside a container that is somebody else's.

        Raises HostError.
        """
        if ids := self._ours():
            self.docker(["rm", "--force", "--volumes", *ids])
            self._log.line(f"{self.endpoint.name}: removed {len(ids)} containers of an earlier run")
        if volumes := self.docker(["volume", "ls", "-q", "--filter", f"label={OURS}"]).text.split():
            self.docker(["volume", "rm", "--force", *volumes])
        other = self.docker(["ps", "-aq", "--filter", f"name=^/{era_commands.NAME}$"]).text.split()
        if other:
            raise HostError(
                f"{self.endpoint.name} has a container {era_commands.NAME} already, which no check started",
                hint=f"stop that cluster, or `docker rm -f {other[0]}` there",
            )


class _Lines:
    """A log that keeps its lines, and passes them on under a name."""

    def __init__(self, to: Log | None = None, name: str = "") -> None:
        self._lines: list[str] = []
        self._to = to
        self._name = name

    def line(self, text: str) -> None:
        self._lines.append(text)
        if self._to is not None:
            first, _, rest = text.partition("\n")
            self._to.line(self._name + first + (" …" if rest else ""))

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """None of docker's own."""

    def text(self) -> str:
        return "\n".join(list(self._lines))


def unique(word: str) -> str:
    """A word that nothing else says."""
    return f"{word}-{uuid4().hex[:12]}"


def last(output: str) -> str:
    """The last words of an output, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-500:] or "no output"
