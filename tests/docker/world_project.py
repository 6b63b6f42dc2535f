"""A toy project of real images, a registry of its own, and what tests do to them."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.log import NullLog
from pipeline.host import engine
from pipeline.lock.service_packages import REGISTRY
from pipeline.registry import local
from tests import stored
from tests.flow.project import NO_BYTECODE, REPOSITORY, Done, Project, own_memory
from tests.ports import free_port


class World(Project):
    """A checkout of the toy project; `name` is that of its image and container, shared by its clones."""

    def __init__(self, root: Path, name: str, registry: str, runner: str) -> None:
        super().__init__(root)
        shutil.copytree(REPOSITORY / "pipeline", root / "pipeline", dirs_exist_ok=True, ignore=NO_BYTECODE)
        own_memory(root)
        shutil.copy2(Path(__file__).with_name("world_dodo.py"), root / "dodo.py")
        self.name = name
        self.registry = registry
        self.env = {"TOY_NAME": name, "TOY_REGISTRY": registry, "TOY_RUNNER": runner}
        self.write("in.txt", f"hello from {name}")

    def clone(self, name: str) -> "World":
        """Another checkout with the same inputs, which has run nothing."""
        return World(self.root.parent / name, self.name, self.registry, self.env["TOY_RUNNER"])

    def start(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "doit"),
    ) -> Any:
        """Start doit."""
        return super().start(*args, env={**self.env, **(env or {})}, prefix=prefix, program=program)

    def ran(self, *args: str, records: str = "off") -> list[str]:
        """What a run that must succeed did."""
        self.happened()
        done = self.doit(*args, env={"TOY_RECORDS": records})
        assert done.code == 0, done.out + done.err
        return self.happened()

    def said(self, *args: str, records: str = "off") -> Done:
        """A run with every line of every task."""
        return self.doit(*args, "-v", "2", env={"TOY_RECORDS": records})

    @property
    def digest(self) -> str:
        """The image's digest, by the report of the last run."""
        outputs = {entry["task"]: entry["outputs"] for entry in self.report()["tasks"]}
        return str(outputs["build:x"]["digest"])

    def prune(self) -> None:
        """Take the image out of the engine's store, under all its names."""
        engine.client().images.remove(self.digest, force=True)
        assert engine.find_image("local", self.digest) is None


@contextmanager
def served(scratch: Path) -> Iterator[tuple[str, str]]:
    """A registry of its own while the block runs: its address, and its image."""
    address = f"127.0.0.1:{free_port()}"
    try:
        yield address, start(address, scratch)
    finally:
        stored.remove_registry(address, volume=True)


def start(address: str, scratch: Path) -> str:
    """Start the registry at an address of this machine; returns its image."""
    return local.start_registry(address, REGISTRY.read(REPOSITORY), scratch, NullLog()).image


def tidy(name: str) -> None:
    """Remove the container and every image of a toy project."""
    client = engine.client()
    for container in client.containers.list(all=True, filters={"name": f"^{name}$"}, ignore_removed=True):
        container.remove(force=True, v=True)
    stored.remove(client, f"/{name}:")
    stored.remove(client, f"/{name}@")
