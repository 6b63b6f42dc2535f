"""`doit logs`: what a cluster's nodes have written, and with -f what they write."""

import sys
import threading
from collections.abc import Iterable
from typing import Any, ClassVar

from pipeline import cluster as clusters
from pipeline.commands.looking import Looking, Options
from pipeline.commands.places import chosen, connected, named, running
from pipeline.errors import ConfigError, Exit
from pipeline.nearest import nearest

WRITING = threading.Lock()


class Logs(Looking):
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
        name, cluster = named(opt_values["cluster"] or None)
        wanted = chosen(pos_args, self.name, most=1)
        known = [node.name for node in cluster.nodes]
        for node in wanted:
            if node not in known:
                raise ConfigError(f"cluster {name} has no node {node!r}", hint=nearest(node, known))
        there = [(endpoint, found) for endpoint, found in running(name, cluster) if found.node in (wanted or known)]
        if not there:
            print(f"{name}: nothing runs", file=sys.stderr)
            return Exit.FAILED
        readers = [
            threading.Thread(target=_show, args=(endpoint, found, opt_values["follow"]), daemon=True)
            for endpoint, found in there
        ]
        _together(readers, one_by_one=not opt_values["follow"])
        return Exit.OK


def _together(readers: Iterable[threading.Thread], *, one_by_one: bool) -> None:
    started = []
    for reader in readers:
        reader.start()
        started.append(reader)
        if one_by_one:
            reader.join()
    for reader in started:
        reader.join()


def _show(endpoint: str, found: clusters.Found, follow: bool) -> None:
    with connected(endpoint) as client:
        rest = b""
        for chunk in clusters.logs_of(client, found.container, follow=follow):
            *whole, rest = (rest + chunk).split(b"\n")
            _print(found.node, whole)
        if rest:
            _print(found.node, [rest])


def _print(node: str, lines: Iterable[bytes]) -> None:
    with WRITING:
        for line in lines:
            print(f"{node} | {line.decode(errors='replace').rstrip()}", flush=True)
