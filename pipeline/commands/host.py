"""`./doitw host`: prints what this machine has and lacks, and installs nothing."""

from msgspec.structs import asdict

from pipeline.commands.base import GraphCommand, Options, print_json, refuse_words
from pipeline.commands.survey import SCHEMA
from pipeline.core.errors import Exit
from pipeline.host import needs as host_needs


class HostCommand(GraphCommand):
    """doit's plugin command `host`."""

    name = "host"
    doc_purpose = "show what this machine has and lacks for building and deploying"
    doc_usage = ""
    doc_description = "Exit status 4 if something is missing. ./doitw installs it where it may."

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Print the table; returns the exit code."""
        refuse_words(pos_args, self.name)
        needs = host_needs.list_needs()
        if opt_values["json"]:
            print_json({"schema": SCHEMA, "needs": [asdict(need) for need in needs]})
        else:
            print(host_needs.needs_table(needs))
        return Exit.OK if all(need.ok for need in needs) else Exit.HOST
