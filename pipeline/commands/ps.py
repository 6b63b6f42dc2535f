"""`./doitw ps`: lists the containers of a cluster, and where they run."""

import sys
from typing import Any

from pipeline.cluster.nodes import ContainerState
from pipeline.commands.base import GraphCommand, Options, print_json
from pipeline.commands.clusters import (
    ClusterSelection,
    check_word_count,
    count_unknown_clusters,
    find_containers,
    is_node,
    select_cluster,
)
from pipeline.commands.survey import SCHEMA
from pipeline.commands.text import counted
from pipeline.core import http_client
from pipeline.core.errors import Exit
from pipeline.core.tables import format_table
from pipeline.graph.task import Json
from pipeline.host.engine import LABEL

Row = dict[str, Any]
COLUMNS = ("node", "endpoint", "container", "state", "rank", "digest", "health")


class PsCommand(GraphCommand):
    """doit's plugin command `ps`."""

    name = "ps"
    doc_purpose = "show what runs of a cluster, and where"
    doc_usage = "[CLUSTER]"
    doc_description = (
        "Without CLUSTER it is the default one of pipeline.yaml, and clusters in this machine's engine that "
        "pipeline.yaml does not have are named. Exit status 1 if a node does not run."
    )

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Print one row a node; returns the exit code."""
        words = check_word_count(pos_args, self.name, most=1)
        selection = select_cluster(next(iter(words), None))
        rows = _rows(selection)
        if opt_values["json"]:
            print_json(as_json(selection.name, rows))
        else:
            print(_table(selection.name, rows))
        for name, count in ({} if words else count_unknown_clusters(selection)).items():
            there = f"{counted(count, 'container')} {'is' if count == 1 else 'are'}"
            note = f"note: pipeline.yaml has no cluster {name}, of which {there} here; unless another "
            print(f"{note}checkout needs them: ./doitw down {name}", file=sys.stderr)
        # Other containers of its name, as of a killed reference, are not nodes.
        return (
            Exit.OK
            if all(entry["state"] == "running" for entry in rows[: len(selection.nodes) or None])
            else Exit.FAILED
        )


def _rows(selection: ClusterSelection) -> list[Row]:
    located = find_containers(selection)
    nodes = {state.node: row(endpoint, state) for endpoint, state in located if is_node(selection, state)}
    rows = [nodes.get(node.name, absent(node.name, node.endpoint)) for node in selection.nodes]
    shown = {(entry["endpoint"], entry["container"]) for entry in rows}
    return rows + [row(endpoint, state) for endpoint, state in located if (endpoint, state.container) not in shown]


def as_json(name: str, rows: list[Row]) -> Json:
    """Returns the value for --json."""
    return {"schema": SCHEMA, "cluster": name, "nodes": list[Json](rows)}


def row(endpoint: str, state: ContainerState) -> Row:
    """Returns one node as the command shows it."""
    return {
        "node": state.node,
        "endpoint": endpoint,
        "container": state.container,
        "state": state.status,
        "rank": state.labels.get(f"{LABEL}.rank", ""),
        "digest": state.labels.get(f"{LABEL}.digest", ""),
        "health": _health(state.published),
    }


def absent(node: str, endpoint: str) -> Row:
    """Returns the row of a node that has no container."""
    return {**dict.fromkeys(COLUMNS, ""), "node": node, "endpoint": endpoint, "state": "absent"}


def _health(port: int | None) -> str:
    if port is None:
        return ""
    try:
        status = http_client.request(("127.0.0.1", port), "/health", timeout_s=5).status
    except (OSError, ValueError):
        return f"127.0.0.1:{port} does not answer"
    return f"127.0.0.1:{port} says {status}"


def _table(name: str, rows: list[Row]) -> str:
    cells = [[entry[column][:19] if column == "digest" else entry[column] for column in COLUMNS] for entry in rows]
    return "\n".join([f"cluster {name}", *format_table([COLUMNS, *cells])])
