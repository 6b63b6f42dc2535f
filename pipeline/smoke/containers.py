"""The containers that checks run in: made from the image as it is, removed whatever happens."""

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
from pipeline.host.containers import OWNER
from pipeline.host.engine import LABEL
from pipeline.smoke.verdict import emulator_crashed

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

SECRETS = "secrets/"
"""Files below it are for root only."""
PROBES = Path(__file__).parent.parent / "probes"
INSIDE = "/opt/tandem"
"""Where our files lie in the containers; never in an image."""
SMOKE = "smoke"
"""What our label says of the containers that are made here."""
OURS = {LABEL: SMOKE}


@dataclass(frozen=True, slots=True)
class Said:
    """What a command left: its exit status (None: it ran too long), its output, and whether an emulator ran it."""

    status: int | None
    text: str
    emulated: bool = False

    @property
    def crashed(self) -> bool:
        """Whether the emulator did; without one, every signal is the command's own."""
        return emulator_crashed(self.status, self.text, emulated=self.emulated)


class BoxError(TandemError):
    """A container of the image cannot even wait for commands."""


class EngineFailed(BoxError):
    """The Docker engine failed, which says nothing about the image."""


class Box:
    """A running container that does nothing but wait for commands; `emulated`: an emulator runs them."""

    def __init__(self, container: "Container", *, emulated: bool) -> None:
        self.container = container
        self.emulated = emulated

    def run(
        self,
        argv: Sequence[str],
        *,
        within: float,
        env: Mapping[str, str] | None = None,
        heard: Callable[[str], None] | None = None,
    ) -> Said:
        """Run a command as `docker exec` does; each line of its output goes to `heard` as it comes.

        A command that runs longer than `within` seconds is left behind: it ends with the container. Raises Cancelled.
        """
        from docker.errors import APIError

        api = self._api()
        lines: list[str] = []
        try:
            made = api.exec_create(self.container.id, list(argv), environment=dict(env or {}))["Id"]
            for line in _lines(api.exec_start(made, stream=True), time.monotonic() + within):
                lines.append(line)
                if heard is not None:
                    heard(line)
            state = api.exec_inspect(made)
        except APIError as error:
            return Said(127, str(error.explanation or error))
        return Said(None if state["Running"] else state["ExitCode"], "\n".join(lines), self.emulated)

    def begin(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
        """Start a command as `docker exec --detach` does; returns the id that `status` takes."""
        api = self._api()
        made: str = api.exec_create(self.container.id, list(argv), environment=dict(env or {}))["Id"]
        api.exec_start(made, detach=True)
        return made

    def status(self, made: str) -> int | None:
        """The exit status of a command that begin() started; None while it runs."""
        state = self._api().exec_inspect(made)
        return None if state["Running"] else state["ExitCode"]

    def address(self) -> str:
        """The container's address on its only network."""
        self.container.reload()
        networks: dict[str, Any] = self.container.attrs["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def processes(self) -> list[str]:
        """The command lines of the living processes inside."""
        return [args for _, state, args in self.top("pid,stat,args") if not state.startswith("Z")]

    def top(self, columns: str) -> list[list[str]]:
        """The container's processes, with the columns of `ps -o` asked for; none if it has ended.

        The last column has the rest of the line; the engine wants `pid` among the columns.
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
        """What the container has written to its log."""
        return bytes(self.container.logs()).decode(errors="replace")

    def _api(self) -> Any:
        assert self.container.client is not None
        return self.container.client.api


def _lines(chunks: Iterator[bytes], deadline: float) -> Iterator[str]:
    """The lines of a stream that may be silent for long; ends at the deadline. Raises Cancelled."""
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
    except Exception as error:  # the container was removed under the stream: what came is what there is
        arrived.put(f"\n(the connection to the container ended: {type(error).__name__})".encode())
    finally:
        arrived.put(None)


class Yard:
    """Makes boxes of one image on one engine, and takes all of them away again."""

    def __init__(self, client: "DockerClient", reference: str, platform: str, *, emulated: bool) -> None:
        self._client = client
        self._reference = reference
        self._platform = platform
        self._labels = {**OURS, OWNER: owners.owner()}
        self.run = uuid4().hex[:8]
        self.emulated = emulated

    @contextmanager
    def network(self) -> Iterator[str]:
        """A private network without a way out; its name. Raises EngineFailed."""
        with engine.failures(error=EngineFailed):
            made = self._client.networks.create(f"tandem-smoke-{uuid4().hex[:8]}", internal=True, labels=self._labels)
            try:
                yield str(made.name)
            finally:
                made.remove()

    @contextmanager
    def box(
        self,
        role: str,
        *,
        network: str = "none",
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        entrypoint: bool = False,
    ) -> Iterator[Box]:
        """A container that runs `sleep infinity`, with the probes and `files` (by path below INSIDE) in it.

        `entrypoint` keeps the image's own. Raises BoxError if the image cannot even do that, EngineFailed until the
        container is gone.
        """
        from docker.errors import APIError

        with engine.failures(error=EngineFailed):
            container = self._create(role, network, env or {}, entrypoint=entrypoint)
            try:
                container.put_archive("/", _archive(files or {}))
                try:
                    container.start()
                except APIError as error:
                    raise BoxError(f"a container of the image does not start: {error.explanation}") from error
                yield Box(container, emulated=self.emulated)
            finally:
                engine.remove(container)

    def _create(self, role: str, network: str, env: Mapping[str, str], *, entrypoint: bool) -> "Container":
        return self._client.containers.create(
            self._reference,
            ["sleep", "infinity"],
            name=f"tandem-smoke-{self.run}-{role}-{uuid4().hex[:4]}",
            labels=self._labels,
            platform=self._platform,
            network=network,
            shm_size="2g",
            environment={**self._shim(), **env},
            entrypoint=None if entrypoint else [""],
        )

    def _shim(self) -> dict[str, str]:
        if not self.emulated:
            return {}
        baked = self._client.images.get(self._reference).attrs["Config"].get("Env") or []
        before = [entry.removeprefix("PYTHONPATH=") for entry in baked if entry.startswith("PYTHONPATH=")]
        return {"PYTHONPATH": ":".join([f"{INSIDE}/emulation", *before])}


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of our files as they lie inside: the probes, and `files` by path below INSIDE."""
    inside = {
        str(file.relative_to(PROBES)): file.read_bytes()
        for file in sorted(PROBES.rglob("*"))
        if file.suffix in {".py", ".sh"}
    }
    there = INSIDE.removeprefix("/")
    return tar.packed(
        {
            f"{there}/{path}": (content, 0o600 if path.startswith(SECRETS) else 0o644)
            for path, content in {**inside, **files}.items()
        }
    )
