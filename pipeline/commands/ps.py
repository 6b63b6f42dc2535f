"""`doit ps`: what runs of a cluster, and where."""

from typing import Any

from pipeline import sockets
from pipeline.cluster import Found
from pipeline.commands.looking import Looking, Options, say
from pipeline.commands.places import chosen, named, running
from pipeline.engine import LABEL
from pipeline.errors import Exit
from pipeline.graph.survey import SCHEMA
from pipeline.graph.task import Json

Row = dict[str, Any]
COLUMNS = ("node", "endpoint", "container", "state", "rank", "digest", "health")


class Ps(Looking):
    """doit's plugin command `ps`."""

    name = "ps"
    doc_purpose = "show what runs of a cluster, and where"
    doc_usage = "[CLUSTER]"
    doc_description = "Without CLUSTER it is the default one of pipeline.yaml. Exit status 1 if a node does not run."

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Print one row a node; returns the exit code."""
        name, cluster = named(next(iter(chosen(pos_args, self.name, most=1)), None))
        there = {found.node: row(endpoint, found) for endpoint, found in running(name, cluster)}
        rows = [there.get(node.name, absent(node.name, node.endpoint)) for node in cluster.nodes]
        if opt_values["json"]:
            say(as_json(name, rows))
        else:
            print(_table(name, rows))
        return Exit.OK if all(entry["state"] == "running" for entry in rows) else Exit.FAILED


def as_json(name: str, rows: list[Row]) -> Json:
    """What --json prints."""
    return {"schema": SCHEMA, "cluster": name, "nodes": list[Json](rows)}


def row(endpoint: str, found: Found) -> Row:
    """One node as the command shows it."""
    return {
        "node": found.node,
        "endpoint": endpoint,
        "container": found.container,
        "state": found.status,
        "rank": found.labels.get(f"{LABEL}.rank", ""),
        "digest": found.labels.get(f"{LABEL}.digest", ""),
        "health": _health(found.published),
    }


def absent(node: str, endpoint: str) -> Row:
    """A node of which nothing is there."""
    return {**dict.fromkeys(COLUMNS, ""), "node": node, "endpoint": endpoint, "state": "absent"}


def _health(port: int | None) -> str:
    if port is None:
        return ""
    try:
        status = sockets.ask(("127.0.0.1", port), "/health").status
    except (OSError, ValueError):
        return f"127.0.0.1:{port} does not answer"
    return f"127.0.0.1:{port} says {status}"


def _table(name: str, rows: list[Row]) -> str:
    shown = [[entry[column][:19] if column == "digest" else entry[column] for column in COLUMNS] for entry in rows]
    widths = [max(len(line[nth]) for line in (list(COLUMNS), *shown)) for nth in range(len(COLUMNS))]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in (list(COLUMNS), *shown)
    ]
    return "\n".join([f"cluster {name}", *lines])
