"""`./doitw log`: prints the output of a task's last run."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pipeline.commands.base import JSON, GraphCommand, Options, print_json
from pipeline.commands.survey import SCHEMA, iso_time
from pipeline.commands.text import format_age, format_size
from pipeline.core.errors import ConfigError, Exit, TandemError
from pipeline.core.tables import format_table
from pipeline.graph.graph import Graph
from pipeline.graph.keys import folder_name
from pipeline.graph.run.holders import find_holder
from pipeline.graph.run.output import LATEST, without_escapes
from pipeline.graph.selection import select_tasks
from pipeline.graph.task import Json

POLL_S = 0.1
QUIET_LOOKS = 5
"""The output has ended after so many looks without a new byte or a running task."""


class LogCommand(GraphCommand):
    """doit's plugin command `log`."""

    name = "log"
    doc_purpose = "replay the last output of a task, also of one that is up to date"
    doc_usage = "TASK [--list] [-f]"
    doc_description = "Piped, it is the log byte for byte; in a terminal, without what would move the cursor."
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "list", "long": "list", "type": bool, "default": False, "help": "list the logs, newest first"},
        {
            "name": "follow", "short": "f", "long": "follow", "type": bool, "default": False,
            "help": "go on until the task ends",
        },
        JSON,
    )  # fmt: skip

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Print the newest log of each task, or list its logs."""
        if not words:
            raise ConfigError("doit log: name a task", hint="./doitw log TASK")
        if options["follow"] and options["json"]:
            raise ConfigError("doit log: --json and -f cannot be combined", hint="leave one of them out")
        names = select_tasks(graph, words)
        if options["follow"] and len(names) > 1:
            raise ConfigError(f"doit log -f follows one task, and there are {len(names)}: {', '.join(names)}")
        logs = {name: _logs(graph, name) for name in names}
        if options["json"]:
            print_json({"schema": SCHEMA, "logs": _logs_json(logs, whole=not options["list"])})
        elif options["list"]:
            print(
                "\n".join(format_table([("TASK", "AGE", "SIZE", "LOG"), *(_row(n, f) for n in names for f in logs[n])]))
            )
        else:
            self._replay(graph, logs, follow=options["follow"])
        return Exit.OK

    def _replay(self, graph: Graph, logs: dict[str, list[Path]], *, follow: bool) -> None:
        for name, files in logs.items():
            if len(logs) > 1:
                print(f"== {name}: {files[0]}")
            for chunk in _follow(graph, name, files[0]) if follow else _read(files[0]):
                _write(chunk)


def _logs(graph: Graph, task: str) -> list[Path]:
    folder = graph.artifacts / "logs" / folder_name(task)
    # Their names are times; one that is newer than the latest is of a run that waited for another.
    files = sorted(folder.glob("*.log"), reverse=True)
    with suppress(OSError):
        latest = (folder / LATEST).readlink().name
        files.sort(key=lambda log: log.name != latest)
    if not files:
        raise TandemError(f"{task} has no log: it has not run here", hint=f"./doitw why {task}")
    return files


def _read(log: Path) -> Iterator[bytes]:
    with log.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk


def _follow(graph: Graph, task: str, log: Path) -> Iterator[bytes]:
    """Yields whole lines of a log as they come, until no process runs the task."""
    quiet_looks, rest = 0, b""
    with log.open("rb") as file:
        while quiet_looks < QUIET_LOOKS:
            running = find_holder(graph, task)
            chunk = file.read()
            quiet_looks = 0 if chunk or running else quiet_looks + 1
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield whole + newline
                sys.stdout.flush()
            if not chunk:
                time.sleep(POLL_S)
    yield rest


def _write(chunk: bytes) -> None:
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(chunk)
        return
    for line in chunk.decode("utf-8", "backslashreplace").splitlines(keepends=True):
        ending = "\n" if line.endswith("\n") else ""
        sys.stdout.write(without_escapes(line.rstrip("\r\n")) + ending)


def _row(task: str, log: Path) -> tuple[str, ...]:
    status = log.stat()
    return task, format_age(time.time() - status.st_mtime), format_size(status.st_size), str(log)


def _json(task: str, log: Path, *, whole: bool) -> Json:
    status = log.stat()
    fields: dict[str, Json] = {
        "task": task, "log": str(log), "ended": iso_time(status.st_mtime), "bytes": status.st_size
    }  # fmt: skip
    if whole:
        fields["lines"] = list[Json](log.read_text("utf-8", "backslashreplace").splitlines())
    return fields


def _logs_json(logs: dict[str, list[Path]], *, whole: bool) -> Json:
    """Returns every log of each task, or the newest one of each with its lines."""
    return [_json(task, log, whole=whole) for task, files in logs.items() for log in (files[:1] if whole else files)]
