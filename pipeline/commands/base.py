"""The base of all commands: options anywhere on the line, the graph of dodo.py, JSON, failures in words."""

import json
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any, ClassVar

from doit import loader
from doit.cmd_base import Command
from doit.cmdparse import CmdOption, CmdParse

from pipeline.commands import failures
from pipeline.core.errors import ConfigError, Exit
from pipeline.graph.graph import Graph
from pipeline.graph.task import Json

JSON: dict[str, Any] = {"name": "json", "long": "json", "type": bool, "default": False, "help": "print JSON only"}
Options = dict[str, Any]


class GraphCommand(Command):  # type: ignore[misc]  # doit has no annotations
    """A command of doit that gets the graph. Options may stand anywhere, also after a task's name."""

    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (JSON,)

    def __init__(self, task_loader: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._loader = task_loader

    def parse_execute(self, in_args: Sequence[str]) -> int:
        """Parse, execute, and report errors; returns the exit code."""
        if "--help" in in_args or "-h" in in_args:
            print(self.help())
            return Exit.OK

        def act() -> int:
            options, words = failures.parse_words(self, in_args)
            return int(self.execute(dict(options), words))

        return exit_code_when_piped(act)

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Load the graph and answer; returns the exit code."""
        graph = load_graph(self._loader, self.opt_vals)
        code = self.answer(graph, opt_values, pos_args)
        graph.cache.save(wait=False)
        for note in graph.records.notes:
            sys.stderr.write(f"note: {note}\n")
        return code

    @abstractmethod
    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Do what the command is for; returns the exit code. Raises TandemError."""


def load_graph(task_loader: Any, given: Options) -> Graph:
    """Returns the graph that dodo.py makes. `given` are doit's own options before the command's name, as `-f FILE`.

    Raises ConfigError if it makes none, and what dodo.py raises.
    """
    parser = CmdParse([CmdOption(option) for option in task_loader.cmd_options])
    where = {**parser.parse([])[0], **given}
    # Output of dodo.py is not part of an answer.
    with redirect_stdout(sys.stderr):
        module = loader.get_module(where["dodoFile"], where["cwdPath"], where["seek_file"])
    for value in vars(module).values():
        if isinstance(value, Graph):
            return value
    raise ConfigError(f"{where['dodoFile']}: makes no graph of tasks")


def print_json(value: Json) -> None:
    """Print JSON on stdout."""
    print(json.dumps(value, indent=1))


def wants_colour() -> bool:
    """Returns whether stdout is a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def refuse_words(words: Sequence[str], command: str) -> None:
    """Raises ConfigError if there are words: the command takes none."""
    if words:
        raise ConfigError(f"doit {command} takes no task, and there is {words[0]!r}", hint=f"./doitw help {command}")


def exit_code_when_piped(act: Callable[[], int]) -> int:
    """Like failures.exit_code_of(), for commands whose output may be piped to a program that stops reading."""

    def flushed() -> int:
        code = act()
        sys.stdout.flush()
        return code

    try:
        return failures.exit_code_of(flushed)
    except BrokenPipeError:
        # The reader has seen enough. Python's last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
