"""`doit host`: what this machine has and lacks. Only looks; ./doitw is what installs."""

from typing import Any, ClassVar

from doit.cmd_base import Command
from doit.exceptions import InvalidCommand

from pipeline import host
from pipeline.errors import Exit


class Host(Command):  # type: ignore[misc]  # doit has no annotations
    """doit's plugin command `host`."""

    name = "host"
    doc_purpose = "show what this machine has and lacks for building and deploying"
    doc_usage = ""
    doc_description = "Exit status 4 if something is missing. ./doitw installs it where it may."
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "json", "long": "json", "type": bool, "default": False, "help": "print JSON"},
    )

    def execute(self, opt_values: dict[str, Any], pos_args: list[str]) -> int:
        """Print the table; returns the exit code."""
        if pos_args:
            raise InvalidCommand(f"host takes no arguments, and there is {pos_args[0]!r}")
        needs = host.look()
        print(host.report(needs, as_json=opt_values["json"]))
        return Exit.OK if all(need.ok for need in needs) else Exit.HOST
