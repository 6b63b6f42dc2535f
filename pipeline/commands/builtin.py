"""doit's own commands: `list` and `help` as they fit here, and those that need doit's database, which are refused."""

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from doit import cmd_help, cmd_list
from doit.cmd_base import Command

from pipeline.commands.base import exit_code_when_piped
from pipeline.commands.failures import parse_words, print_error
from pipeline.core.errors import ConfigError, Exit
from pipeline.core.suggest import closest_name

DOITW = (
    ("test [PYTEST'S ARGUMENTS]", "check the sources, then run the tests"),
    ("set-up", "set up .venv and this machine, and end"),
    ("relock IMAGE|tooling", "lock an image or the tooling again, with the newest versions"),
)


class Refused(Command):  # type: ignore[misc]  # doit has no annotations
    """A command that would read or write doit's database, which is not used here. It names what to use instead."""

    instead: ClassVar[str]
    doc_description = "doit keeps no database here: what is up to date follows from artifacts/records/."

    def parse_execute(self, in_args: Sequence[str]) -> int:  # noqa: ARG002  # whatever they are
        """Print what to use; returns the exit code."""
        return print_error(ConfigError(f"doit {self.name} has no meaning here", hint=self.instead))


def _refused(name: str, see: str, instead: str) -> type[Refused]:
    return type(name, (Refused,), {"name": name, "doc_purpose": f"not used here: {see}", "instead": instead})


# pyproject.toml puts each in place of doit's command of that name.
Clean = _refused(
    "clean", "see gc and down", "./doitw gc removes what is old, ./doitw down a cluster, ./doitw forget results"
)
DumpDB = _refused("dumpdb", "see status and why", "./doitw status --json, ./doitw why TASK --json")
Ignore = _refused(
    "ignore", "no task can be ignored", "name the tasks to run; ./doitw plan TASK says what that comes to"
)
Info = _refused("info", "see why", "./doitw why TASK")
ResetDep = _refused(
    "reset-dep",
    "see why and forget",
    "./doitw why TASK says why it would run; nothing takes a result for one of other inputs",
)
Strace = _refused("strace", "see why", "./doitw why TASK lists the files that a task depends on")


class List(cmd_list.List):  # type: ignore[misc]  # doit has no annotations
    """doit's `list`, without states: doit knows two of the five."""

    name = "list"

    def parse_execute(self, in_args: Sequence[str]) -> int:
        """List tasks; returns the exit code."""

        def act() -> int:
            options, words = parse_words(self, in_args)
            if options["status"]:
                raise ConfigError("doit list knows no states", hint="./doitw status")
            options.update(self.opt_vals)
            self.outstream = sys.stdout  # doit took the stream when it started, which may be closed
            return int(self.execute(options, words) or Exit.OK)

        return exit_code_when_piped(act)


class Help(cmd_help.Help):  # type: ignore[misc]  # doit has no annotations
    """doit's `help`, of the commands that are used here, with the words of ./doitw."""

    name = "help"

    def parse_execute(self, in_args: Sequence[str]) -> int:
        """Print the help; returns the exit code."""

        def act() -> int:
            options, words = parse_words(self, in_args)
            if len(words) > 1:
                raise ConfigError(f"doit help takes one word, not {len(words)}", hint="./doitw help lists the commands")
            options.update(self.opt_vals)
            self._word = words[0] if words else None
            for usage, purpose in DOITW:
                if usage.split()[0] == self._word:
                    print(f"./doitw {usage}\n\n{purpose}")
                    return Exit.OK
            return int(self.execute(options, words) or Exit.OK)

        return exit_code_when_piped(act)

    def print_usage(self, cmds: dict[str, Any]) -> None:
        """Print a line for each command and each word of ./doitw. doit calls this for an unknown word, too."""
        if self._word is not None:
            if broken := sys.exc_info()[1]:  # dodo.py cannot be read, so nobody knows its tasks
                raise broken
            near = closest_name(
                self._word, [name for name, command in cmds.items() if not issubclass(command, Refused)]
            )
            hint = f"did you mean {near!r}?" if near else "./doitw help lists the commands, ./doitw list the tasks"
            raise ConfigError(f"{self._word!r} is neither a command nor a task", hint=hint)
        super().print_usage({name: command for name, command in cmds.items() if not issubclass(command, Refused)})
        print("\nBefore doit is there")
        for words, purpose in DOITW:
            print(f"  ./doitw {words:<25}  {purpose}")
