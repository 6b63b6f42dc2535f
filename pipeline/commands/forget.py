"""`./doitw forget`: removes records of tasks, so that these run again."""

from pathlib import Path
from typing import Any, ClassVar

from pipeline.commands.base import JSON, GraphCommand, Options, print_json
from pipeline.commands.survey import SCHEMA
from pipeline.commands.text import counted
from pipeline.core.errors import ConfigError, Exit
from pipeline.core.files import write_failure
from pipeline.graph.graph import Graph
from pipeline.graph.records import LATEST
from pipeline.graph.selection import select_tasks
from pipeline.graph.task import Json


class ForgetCommand(GraphCommand):
    """doit's plugin command `forget`, in place of doit's own, which empties a database that we do not use."""

    name = "forget"
    doc_purpose = "forget the results of tasks, so that they run again"
    doc_usage = "TASK ... | --all"
    doc_description = (
        "Removes records only: what was made stays, and `./doitw gc` removes what no record claims. A run under way "
        "leaves its record all the same."
    )
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "all", "short": "a", "long": "all", "type": bool, "default": False, "help": "forget every task"},
        JSON,
    )

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Remove the records, and print how many."""
        if bool(words) == options["all"]:
            raise ConfigError("doit forget: name tasks, or say --all", hint="./doitw forget TASK ... | --all")
        forgotten = {
            name: _forget(graph.records.path(name, "").parent) for name in select_tasks(graph, words) or graph.tasks
        }
        if options["json"]:
            print_json({"schema": SCHEMA, "tasks": [_json(name, count) for name, count in forgotten.items()]})
        else:
            for name, count in forgotten.items():
                print(f"{name}: {counted(count, 'result')} forgotten" if count else f"{name}: no result to forget")
        return Exit.OK


def _forget(folder: Path) -> int:
    """Removes all records of a task, damaged ones too; returns how many there were. Raises HostError."""
    records = sorted(folder.glob("*.json"))
    for path in (folder / LATEST, *records):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise write_failure(path, error) from error
    return len(records)


def _json(name: str, count: int) -> Json:
    return {"task": name, "records": count}
