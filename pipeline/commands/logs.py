"""`./doitw logs`: prints the output of a cluster's nodes, and follows it with -f."""

import sys
import threading
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from typing import Any, ClassVar

from pipeline.cluster.nodes import ContainerState, read_output
from pipeline.commands.base import GraphCommand, Options
from pipeline.commands.clusters import check_word_count, find_containers, select_cluster
from pipeline.core.errors import ConfigError, Exit
from pipeline.core.suggest import suggestion
from pipeline.host import engine

Place = tuple[str, ContainerState]
"""An endpoint, and a container there."""


class LogsCommand(GraphCommand):
    """doit's plugin command `logs`."""

    name = "logs"
    doc_purpose = "show what the nodes of a cluster have written"
    doc_usage = "[NODE]"
    doc_description = "Without NODE it is every node of the cluster, each line under its node's name."
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "name": "follow",
            "short": "f",
            "long": "follow",
            "type": bool,
            "default": False,
            "help": "go on until Ctrl-C",
        },
        {"name": "cluster", "short": "c", "long": "cluster", "type": str, "default": "", "help": "another cluster"},
    )

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Print the logs; returns the exit code."""
        selection = select_cluster(opt_values["cluster"] or None)
        wanted = check_word_count(pos_args, self.name, most=1)
        places = find_containers(selection)
        known = {node.name for node in selection.nodes} | {state.node for _, state in places}
        for node in wanted:
            if node not in known:
                raise ConfigError(f"cluster {selection.name} has no node {node!r}", hint=suggestion(node, known))
        places = [(endpoint, state) for endpoint, state in places if state.node in (wanted or known)]
        if not places:
            problem = f"node {wanted[0]} does not run" if wanted else "nothing runs"
            print(f"{selection.name}: {problem}", file=sys.stderr)
            return Exit.FAILED
        if opt_values["follow"]:
            _follow(places)
        else:
            for place in places:
                _show(place, threading.Lock(), follow=False)
        return Exit.OK


def _follow(places: Sequence[Place]) -> None:
    """Print all output until all containers have ended. An error in one of them, or a closed stdout, ends it."""
    writing = threading.Lock()
    ended: SimpleQueue[Exception | None] = SimpleQueue()

    def show(place: Place) -> None:
        try:
            _show(place, writing, follow=True)
        except Exception as error:  # whatever it is, it is the command's
            ended.put(error)
        else:
            ended.put(None)

    try:
        for place in places:
            threading.Thread(target=show, args=(place,), daemon=True).start()
        for _ in places:
            if (error := ended.get()) is not None:
                raise error
    finally:
        # Kept: no thread that goes on may be in the middle of a line when Python ends.
        writing.acquire(timeout=1)


def _show(place: Place, writing: threading.Lock, *, follow: bool) -> None:
    endpoint, state = place
    with engine.session(endpoint) as client:
        rest = b""
        for chunk in read_output(client, state.container, follow=follow):
            *whole, rest = (rest + chunk).split(b"\n")
            _print(state.node, whole, writing)
        if rest:
            _print(state.node, [rest], writing)
        if follow:
            client.ping()  # to the SDK, an engine that went away is the end of the log


def _print(node: str, lines: Iterable[bytes], writing: threading.Lock) -> None:
    with writing:
        for line in lines:
            print(f"{node} | {line.decode(errors='replace').rstrip()}", flush=True)
