"""The containers that checks run in: made from the image as it is, and removed however a check ends."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipeline.core import owners, procs, tar
from pipeline.core.errors import Cancelled, TandemError
from pipeline.host import engine
from pipeline.host.containers import OWNER_LABEL
from pipeline.host.engine import LABEL
from pipeline.smoke.verdict import emulator_crashed

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

PROBES = Path(__file__).parent.parent / "probes"
PROBE_FOLDER = "/opt/tandem"
"""The folder of the probes in a container. No image has it."""
SECRETS = "secrets/"
"""Files below this folder are readable for root only."""
SMOKE_LABEL = "smoke"
"""The value of our label on these containers and networks."""
COMMAND_NOT_RUN = 127
"""The exit status that a shell gives for a command that it cannot run."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    status: int | None
    """Its exit status; None if it ran too long."""
    output: str
    """Its standard output and standard error, mixed."""
    emulated: bool = False
    """An emulator ran it."""

    @property
    def crashed(self) -> bool:
        """Whether the emulator crashed."""
        return emulator_crashed(self.status, self.output, emulated=self.emulated)


class ContainerError(TandemError):
    """A container of the image does not start."""


class EngineError(ContainerError):
    """The Docker engine failed, which says nothing about the image."""


class ProbeContainer:
    """A running container that only waits for commands."""

    def __init__(self, container: "Container", *, emulated: bool) -> None:
        self.container = container
        self.emulated = emulated
        """An emulator runs its commands."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> CommandResult:
        """Runs a command as `docker exec` does, and passes each line of its output to `on_line` as it comes.

        A command that exceeds its time keeps running until the container is removed. Raises Cancelled.
        """
        from docker.errors import APIError

        api = self._api()
        lines: list[str] = []
        try:
            exec_id = api.exec_create(self.container.id, list(argv), environment=dict(env or {}))["Id"]
            for line in _lines(api.exec_start(exec_id, stream=True), time.monotonic() + timeout_s):
                lines.append(line)
                if on_line is not None:
                    on_line(line)
            state = api.exec_inspect(exec_id)
        except APIError as error:
            return CommandResult(COMMAND_NOT_RUN, str(error.explanation or error))
        return CommandResult(None if state["Running"] else state["ExitCode"], "\n".join(lines), self.emulated)

    def begin(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
        """Starts a command as `docker exec --detach` does; returns the id that `status` takes."""
        api = self._api()
        exec_id: str = api.exec_create(self.container.id, list(argv), environment=dict(env or {}))["Id"]
        api.exec_start(exec_id, detach=True)
        return exec_id

    def status(self, exec_id: str) -> int | None:
        """Returns the exit status of a command that `begin` started; None while it runs."""
        state = self._api().exec_inspect(exec_id)
        return None if state["Running"] else state["ExitCode"]

    def address(self) -> str:
        """Returns the container's address on its only network."""
        self.container.reload()
        networks: dict[str, Any] = self.container.attrs["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def processes(self) -> list[str]:
        """Returns the command lines of the living processes in the container."""
        return [args for _, state, args in self.top("pid,stat,args") if not state.startswith("Z")]

    def top(self, columns: str) -> list[list[str]]:
        """Returns the container's processes, with columns as `ps -o` takes them; none if it has ended.

        The last column has the rest of the line. The engine demands `pid` among the columns.
        """
        from docker.errors import APIError

        try:
            return self.container.top(ps_args=f"-eo {columns}")["Processes"] or []
        except APIError:
            self.container.reload()
            if self.container.status == "running":
                raise
            return []

    def output(self) -> str:
        """Returns the container's log."""
        return bytes(self.container.logs()).decode(errors="replace")

    def _api(self) -> Any:
        assert self.container.client is not None
        return self.container.client.api


def _lines(chunks: Iterator[bytes], deadline: float) -> Iterator[str]:
    """Yields the lines of a stream, which may be silent for long, until the deadline. Raises Cancelled."""
    arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(chunks, arrived), daemon=True).start()
    rest = b""
    while time.monotonic() < deadline:
        if procs.cancelled():
            raise Cancelled("interrupted")
        try:
            chunk = arrived.get(timeout=0.5)
        except queue.Empty:
            continue
        if chunk is None:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def _pump(chunks: Iterator[bytes], arrived: "queue.SimpleQueue[bytes | None]") -> None:
    try:
        for chunk in chunks:
            arrived.put(chunk)
    except Exception as error:  # the container was removed under the stream: what came is all that there is
        arrived.put(f"\n(the connection to the container ended: {type(error).__name__})".encode())
    finally:
        arrived.put(None)


class ContainerFactory:
    """Starts containers of one image on one engine, and removes them."""

    def __init__(self, client: "DockerClient", reference: str, platform: str, *, emulated: bool) -> None:
        self._client = client
        self._reference = reference
        self._platform = platform
        self._labels = {LABEL: SMOKE_LABEL, OWNER_LABEL: owners.current_owner()}
        self._run = uuid4().hex[:8]
        self.emulated = emulated

    def description(self) -> dict[str, Any]:
        """Returns the engine's description of the image. Raises TandemError if the engine does not have it."""
        from docker.errors import ImageNotFound

        try:
            description: dict[str, Any] = self._client.images.get(self._reference).attrs
        except ImageNotFound as error:
            raise TandemError(f"the engine has no image {self._reference}", hint="build it first") from error
        return description

    @contextmanager
    def network(self) -> Iterator[str]:
        """Makes a private network without a way out, and yields its name. Raises EngineError."""
        with engine.failures(error=EngineError):
            name = f"tandem-smoke-{uuid4().hex[:8]}"
            network = self._client.networks.create(name, internal=True, labels=self._labels)
            try:
                yield str(network.name)
            finally:
                network.remove()

    @contextmanager
    def start(
        self,
        role: str,
        *,
        network: str = "none",
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = ("sleep", "infinity"),
        entrypoint: bool = False,
    ) -> Iterator[ProbeContainer]:
        """Runs a command in a container that has the probes, and `files` by path below PROBE_FOLDER.

        `entrypoint` keeps the ENTRYPOINT of the image. Raises ContainerError if the image cannot run the command at
        all, and EngineError for as long as the container exists.
        """
        from docker.errors import APIError

        with engine.failures(error=EngineError):
            container = self._create(role, network, env or {}, command, entrypoint=entrypoint)
            try:
                container.put_archive("/", _archive(files or {}))
                try:
                    container.start()
                except APIError as error:
                    raise ContainerError(f"a container of the image does not start: {error.explanation}") from error
                yield ProbeContainer(container, emulated=self.emulated)
            finally:
                engine.remove_container(container)

    def _create(
        self, role: str, network: str, env: Mapping[str, str], command: Sequence[str], *, entrypoint: bool
    ) -> "Container":
        return self._client.containers.create(
            self._reference,
            list(command),
            name=f"tandem-smoke-{self._run}-{role}-{uuid4().hex[:4]}",
            labels=self._labels,
            platform=self._platform,
            network=network,
            shm_size="2g",
            environment={**self._shim(), **env},
            entrypoint=None if entrypoint else [""],
        )

    def _shim(self) -> dict[str, str]:
        """Returns the environment that puts the probes' `sitecustomize` into Python where an emulator runs it."""
        if not self.emulated:
            return {}
        baked = self.description()["Config"].get("Env") or []
        before = [entry.removeprefix("PYTHONPATH=") for entry in baked if entry.startswith("PYTHONPATH=")]
        return {"PYTHONPATH": ":".join([f"{PROBE_FOLDER}/emulation", *before])}


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Returns a tar of the probes and of `files`, at their paths in the container."""
    probes = {
        str(file.relative_to(PROBES)): file.read_bytes()
        for file in sorted(PROBES.rglob("*"))
        if file.suffix in {".py", ".sh"}
    }
    return tar.archive_bytes(
        {
            f"{PROBE_FOLDER.removeprefix('/')}/{path}": (content, 0o600 if path.startswith(SECRETS) else 0o644)
            for path, content in {**probes, **files}.items()
        }
    )
