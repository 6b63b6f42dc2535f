"""`doit status`: all tasks in one table."""

import time

from pipeline.commands.base import Looking, Options, coloured, say
from pipeline.commands.survey import SCHEMA, Seen, moment, running_json, survey
from pipeline.commands.text import age, duration, state, table
from pipeline.core.errors import Exit
from pipeline.graph.graph import Graph
from pipeline.graph.selection import resolve
from pipeline.graph.task import Json


class Status(Looking):
    """doit's plugin command `status`."""

    name = "status"
    doc_purpose = "show all tasks in one table: state, digest, age and duration of the newest result"
    doc_usage = "[TASK ...]"
    doc_description = "Exit status 0 whatever the states are. `doit why TASK` says why a task would run."

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Print the table of these tasks, or of all."""
        names = resolve(graph, words)
        found = [seen for name, seen in survey(graph, names).items() if name in names or not names]
        if options["json"]:
            say({"schema": SCHEMA, "tasks": [_json(seen) for seen in found]})
        else:
            now = time.time()
            rows = [("TASK", "STATE", "DIGEST", "AGE", "TOOK"), *(_row(seen, now) for seen in found)]
            print("\n".join(table(rows)))
        return Exit.OK


def _row(seen: Seen, now: float) -> tuple[str, ...]:
    note = f"process {seen.running.pid}" if seen.running else ""
    return (
        seen.task.name,
        state(seen.state, colour=coloured(), note=note),
        seen.digest[:12] if seen.digest else "-",
        age(None if seen.finished is None else now - seen.finished),
        duration(seen.seconds),
    )


def _json(seen: Seen) -> Json:
    return {
        "task": seen.task.name,
        "state": str(seen.decision.state),
        "running": running_json(seen.running),
        "digest": seen.digest,
        "finished": moment(seen.finished),
        "seconds": seen.seconds,
        "outputs": seen.newest.outputs if seen.newest else None,
    }
