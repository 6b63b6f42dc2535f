"""Tools whose version decides bytes, by name; asked only when a task's inputs name them."""

import os
import shutil
import threading
from collections.abc import Callable, Sequence

from pipeline.core.errors import ConfigError, HostError
from pipeline.graph.stat_cache import StatCache

MISSING = "missing"


class Tools:
    """A registry from a tool's name to a function that says which one this machine has; each is asked once."""

    def __init__(self) -> None:
        self._identities: dict[str, Callable[[], str]] = {}
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def register(self, name: str, identity: Callable[[], str]) -> None:
        """Name a tool. `identity` returns a text such as "uv 0.9.5", and raises HostError if it is not there."""
        self._identities[name] = identity

    def identity(self, name: str) -> str:
        """Returns the identity of a tool, or "missing". Raises ConfigError for an unregistered name."""
        if name not in self._identities:
            raise ConfigError(f"tool {name!r}: no such tool", hint=f"known: {', '.join(sorted(self._identities))}")
        with self._lock:
            if name not in self._known:
                self._known[name] = self._ask(name)
            return self._known[name]

    def forget(self) -> None:
        """Ask every tool again when it is next named: a machine may be upgraded while a task runs."""
        with self._lock:
            self._known.clear()

    def _ask(self, name: str) -> str:
        try:
            return self._identities[name]()
        except HostError:
            # The task that needs it says so when it runs; looking at the graph needs no tool.
            return MISSING


def identity_of_program(program: str, arguments: Sequence[str], cache: StatCache) -> Callable[[], str]:
    """Returns a function that identifies a program by its output. It is started only if its file changed."""

    def ask(path: str) -> str:
        # Starting programs is only needed when one was replaced.
        from pipeline.core.procs import capture

        return capture([path, *arguments], timeout_s=30).strip()

    def identity() -> str:
        path = shutil.which(program)
        if path is None:
            raise HostError(f"{program} is not installed", hint="./doitw host says what is missing")
        return cache.fact("tool " + " ".join(arguments), os.path.realpath(path), ask)

    return identity
