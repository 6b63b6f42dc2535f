"""`./doitw graph`: the tasks and what they wait for, with their states, as text or as one HTML file."""

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from doit import loader

from pipeline.commands.base import JSON, GraphCommand, Options, print_json, wants_colour
from pipeline.commands.survey import SCHEMA, TaskStatus, running_json, survey_tasks
from pipeline.commands.text import ascii_only, format_duration, format_tree, state_text
from pipeline.core.errors import ConfigError, Exit
from pipeline.core.files import write_whole
from pipeline.graph.graph import Graph
from pipeline.graph.selection import select_tasks
from pipeline.graph.task import Json


class ShowGraphCommand(GraphCommand):
    """doit's plugin command `graph`."""

    name = "graph"
    doc_purpose = "show the graph of tasks with their states, as text or as one HTML file"
    doc_usage = "[TASK ...] [--html FILE]"
    doc_description = "With tasks named: those, and everything upstream of them."
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "html", "long": "html", "default": "", "metavar": "FILE", "help": "write a self-contained HTML file"},
        JSON,
    )

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Print the tree, or write the page."""
        statuses = survey_tasks(graph, select_tasks(graph, words))
        if options["html"]:
            from pipeline.commands.graph_html import render_page

            file = _output_file(options["html"])
            write_whole(file, render_page(statuses, title=graph.root.resolve().name), sync=False)
        if options["json"]:
            print_json({"schema": SCHEMA, "tasks": [_json(status) for status in statuses.values()]})
        elif options["html"]:
            print(f"written: {options['html']}")
        else:
            text = "\n".join(format_tree(graph, list(statuses), lambda name: _label(statuses[name])))
            print(text if _draws_boxes() else ascii_only(text))
        return Exit.OK


def _draws_boxes() -> bool:
    try:
        "└├│─".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _output_file(named: str) -> Path:
    """Returns a file below the folder in which the command was given, which is not always dodo.py's.

    Raises ConfigError if its folder does not exist, or it is not a file.
    """
    # Links are followed: other links to the file then lead to the new one.
    file = Path(os.environ.get("TANDEM_CWD") or loader.initial_workdir or ".", named).resolve()
    if not file.parent.is_dir():
        raise ConfigError(f"--html {named}: the folder {file.parent} does not exist", hint="make it first")
    if file.is_dir() or not file.name:
        raise ConfigError(f"--html {named}: that is a folder", hint="name a file in it")
    if named == "-" or (file.exists() and not file.is_file()):
        raise ConfigError(f"--html {named}: that is not a plain file", hint="name one, as in graph.html")
    return file


def _label(status: TaskStatus) -> str:
    took = f"  {format_duration(status.seconds)}" if status.seconds is not None else ""
    return f"{status.task.name}  {state_text(status.state, colour=wants_colour())}{took}"


def _json(status: TaskStatus) -> Json:
    return {
        "task": status.task.name,
        "doc": status.task.doc,
        "needs": list[Json](status.task.needs),
        "after": list[Json](status.task.after),
        "state": str(status.decision.state),
        "running": running_json(status.running),
        "digest": status.digest,
        "seconds": status.seconds,
    }
