"""`./doitw status`: all tasks in one table."""

import time

from pipeline.commands.base import GraphCommand, Options, print_json, wants_colour
from pipeline.commands.survey import SCHEMA, TaskStatus, iso_time, running_json, survey_tasks
from pipeline.commands.text import format_age, format_duration, state_text
from pipeline.core.errors import Exit
from pipeline.core.tables import format_table
from pipeline.graph.graph import Graph
from pipeline.graph.selection import select_tasks
from pipeline.graph.task import Json


class StatusCommand(GraphCommand):
    """doit's plugin command `status`."""

    name = "status"
    doc_purpose = "show all tasks in one table: state, digest, age and duration of the newest result"
    doc_usage = "[TASK ...]"
    doc_description = "Exit status 0 whatever the states are. `./doitw why TASK` says why a task would run."

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Print the table of these tasks, or of all."""
        names = select_tasks(graph, words)
        statuses = [status for name, status in survey_tasks(graph, names).items() if name in names or not names]
        if options["json"]:
            print_json({"schema": SCHEMA, "tasks": [_json(status) for status in statuses]})
        else:
            now = time.time()
            rows = [("TASK", "STATE", "DIGEST", "AGE", "TOOK"), *(_row(status, now) for status in statuses)]
            print("\n".join(format_table(rows)))
        return Exit.OK


def _row(status: TaskStatus, now: float) -> tuple[str, ...]:
    note = f"process {status.running.pid}" if status.running else ""
    return (
        status.task.name,
        state_text(status.state, colour=wants_colour(), note=note),
        status.digest[:12] if status.digest else "-",
        format_age(None if status.finished is None else now - status.finished),
        format_duration(status.seconds),
    )


def _json(status: TaskStatus) -> Json:
    return {
        "task": status.task.name,
        "state": str(status.decision.state),
        "running": running_json(status.running),
        "digest": status.digest,
        "finished": iso_time(status.finished),
        "seconds": status.seconds,
        "outputs": status.newest.outputs if status.newest else None,
    }
