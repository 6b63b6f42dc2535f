"""doit's own commands here: `list` and `help` as they fit, and those that mean its database refused."""

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
    ("relock IMAGE|tooling", "lock an image or the tooling anew, with the newest versions"),
)


class Refused(Command):  # type: ignore[misc]  # doit has no annotations
    """A command of doit that would read or write doit's database, which is not used here."""

    instead: ClassVar[str]
    doc_description = "doit keeps no database here: what is up to date follows from artifacts/records/."

    def parse_execute(self, in_args: Sequence[str]) -> int:  # noqa: ARG002  # whatever they are
        """Say what to use."""
        return print_error(ConfigError(f"doit {self.name} has no meaning here", hint=self.instead))


class Clean(Refused):
    """Would remove targets, and no task has any."""

    name = "clean"
    doc_purpose = "not used here: see gc and down"
    instead = "doit gc removes what is old, doit down a cluster, doit forget results"


class DumpDB(Refused):
    """Would print the database."""

    name = "dumpdb"
    doc_purpose = "not used here: see status and why"
    instead = "doit status --json, doit why TASK --json"


class Ignore(Refused):
    """Would note in the database that a task is to be skipped."""

    name = "ignore"
    doc_purpose = "not used here: no task can be ignored"
    instead = "name the tasks to run; doit plan TASK says what that comes to"


class Info(Refused):
    """Would show doit's view of a task, which knows no inputs."""

    name = "info"
    doc_purpose = "not used here: see why"
    instead = "doit why TASK"


class ResetDep(Refused):
    """Would take the present inputs for those of the last run."""

    name = "reset-dep"
    doc_purpose = "not used here: see why and forget"
    instead = "doit why TASK says why it would run; nothing takes a result for one of other inputs"


class Strace(Refused):
    """Would trace a task's shell command, and no task has any."""

    name = "strace"
    doc_purpose = "not used here: see why"
    instead = "doit why TASK lists the files that a task depends on"


class List(cmd_list.List):  # type: ignore[misc]  # doit has no annotations
    """doit's `list`, without states: doit knows two of the five."""

    name = "list"

    def parse_execute(self, in_args: Sequence[str]) -> int:
        """List tasks; returns the exit code."""

        def act() -> int:
            options, words = parse_words(self, in_args)
            if options["status"]:
                raise ConfigError("doit list knows no states", hint="doit status")
            options.update(self.opt_vals)
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
                raise ConfigError(f"doit help takes one word, not {len(words)}", hint="doit help lists the commands")
            options.update(self.opt_vals)
            self._word = words[0] if words else None
            return int(self.execute(options, words) or Exit.OK)

        return exit_code_when_piped(act)

    def print_usage(self, cmds: dict[str, Any]) -> None:
        """One line for each command and each word of ./doitw; doit comes here too with a word that means nothing."""
        if self._word is not None:
            if broken := sys.exc_info()[1]:  # dodo.py cannot be read, so nobody knows its tasks
                raise broken
            near = closest_name(
                self._word, [name for name, command in cmds.items() if not issubclass(command, Refused)]
            )
            hint = f"did you mean {near!r}?" if near else "doit help lists the commands, doit list the tasks"
            raise ConfigError(f"{self._word!r} is neither a command nor a task", hint=hint)
        super().print_usage({name: command for name, command in cmds.items() if not issubclass(command, Refused)})
        print("\nBefore doit is there")
        for words, purpose in DOITW:
            print(f"  ./doitw {words:<25}  {purpose}")
