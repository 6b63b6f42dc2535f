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
        found = [seen for name, seen in survey_tasks(graph, names).items() if name in names or not names]
        if options["json"]:
            print_json({"schema": SCHEMA, "tasks": [_json(seen) for seen in found]})
        else:
            now = time.time()
            rows = [("TASK", "STATE", "DIGEST", "AGE", "TOOK"), *(_row(seen, now) for seen in found)]
            print("\n".join(format_table(rows)))
        return Exit.OK


def _row(seen: TaskStatus, now: float) -> tuple[str, ...]:
    note = f"process {seen.running.pid}" if seen.running else ""
    return (
        seen.task.name,
        state_text(seen.state, colour=wants_colour(), note=note),
        seen.digest[:12] if seen.digest else "-",
        format_age(None if seen.finished is None else now - seen.finished),
        format_duration(seen.seconds),
    )


def _json(seen: TaskStatus) -> Json:
    return {
        "task": seen.task.name,
        "state": str(seen.decision.state),
        "running": running_json(seen.running),
        "digest": seen.digest,
        "finished": iso_time(seen.finished),
        "seconds": seen.seconds,
        "outputs": seen.newest.outputs if seen.newest else None,
    }
