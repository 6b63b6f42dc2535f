"""`./doitw affected`: the tasks that a git change touches."""

from typing import Any, ClassVar

from pipeline.commands.base import JSON, GraphCommand, Options, print_json, refuse_words
from pipeline.commands.survey import SCHEMA
from pipeline.commands.text import counted
from pipeline.core.errors import Exit
from pipeline.core.tables import format_table
from pipeline.graph.graph import Graph
from pipeline.graph.task import Json

MAX_NAMED = 3


class AffectedCommand(GraphCommand):
    """doit's plugin command `affected`."""

    name = "affected"
    doc_purpose = "show the tasks that a git change touches, and what they touch downstream"
    doc_usage = "[--base REV]"
    doc_description = (
        "Compares the working tree, uncommitted and new files included, with the commit at which REV and HEAD parted. "
        "It does not ask whether a task is up to date: `./doitw plan` does."
    )
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "base", "long": "base", "default": "HEAD", "help": "commit to compare with [default: %(default)s]"},
        JSON,
    )

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Print one line a task, with what touches it."""
        from pipeline.graph import affected

        refuse_words(words, "affected")
        changes = affected.changes_since(graph.root, options["base"])
        touched = affected.touched_tasks(graph, changes)
        if options["json"]:
            files: Json = list[Json](changes.paths)
            tasks = affected.touched_json(touched)
            print_json(
                {"schema": SCHEMA, "base": changes.base, "commit": changes.commit, "files": files, "tasks": tasks}
            )
            return Exit.OK
        print(
            "\n".join(format_table([(one.task, _why(one.inputs, one.upstream)) for one in touched]))
            or "no task is touched"
        )
        counts = affected.count_touched(changes, touched)
        print(
            f"{counted(counts['files'], 'file differs', 'files differ')} from {changes.base} ({changes.commit[:12]}): "
            f"{counted(counts['touched'], 'task')} touched, {counts['downstream']} more downstream"
        )
        return Exit.OK


def _why(inputs: tuple[str, ...], upstream: tuple[str, ...]) -> str:
    if inputs:
        more = f" and {len(inputs) - MAX_NAMED} more" if inputs[MAX_NAMED:] else ""
        return ", ".join(inputs[:MAX_NAMED]) + more
    return f"downstream of {', '.join(upstream)}"
