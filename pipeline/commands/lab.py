"""`./doitw lab`: machines to try things on, reached only by ssh and the registry."""

import shlex
from typing import Any, ClassVar

from pipeline.commands.base import JSON, GraphCommand, Options, print_json
from pipeline.commands.clusters import check_word_count, checkout_root
from pipeline.commands.progress import TerminalLog
from pipeline.commands.survey import SCHEMA
from pipeline.core.errors import ConfigError, Exit
from pipeline.core.suggest import suggestion
from pipeline.core.tables import format_table
from pipeline.graph.task import Json
from pipeline.lab import lab, machines
from pipeline.lab.lab import MachineStatus

COLUMNS = ("name", "address", "endpoint", "store", "engine", "state")
OPTIONS = {"up": ("store", "machines"), "down": (), "ps": ("json",)}


class LabCommand(GraphCommand):
    """doit's plugin command `lab`."""

    name = "lab"
    doc_purpose = "machines to try things on: containers with an ssh server and a Docker engine each"
    doc_usage = "up [--store STORE] [--machines N] | down | ps [--json]"
    doc_description = (
        "up makes them and waits until their engines answer over ssh; a lab that already matches is left alone. "
        "down removes all of it but the image. Exit status of ps is 1 if one does not answer, or there is none."
    )
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "name": "store", "long": "store", "type": str, "default": "", "metavar": "STORE",
            "help": "image store of their engines: containerd (if not given, and no lab is up) or overlay2",
        },
        {
            "name": "machines", "long": "machines", "type": str, "default": "", "metavar": "N",
            "help": "how many (2 if not given, and no lab is up)",
        },
        JSON,
    )  # fmt: skip

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Do it and print the result; returns the exit code."""
        words = check_word_count(pos_args, self.name, most=1)
        what = words[0] if words else ""
        if what not in OPTIONS:
            raise ConfigError(
                " ".join(["doit lab", *words]) + ": name an action: up, down or ps",
                hint=(suggestion(what, OPTIONS) if what else "") or "./doitw help lab",
            )
        for option in ("store", "machines", "json"):
            if opt_values[option] and option not in OPTIONS[what]:
                raise ConfigError(f"doit lab {what} has no option --{option}", hint="./doitw help lab")
        if what == "up":
            return _up(opt_values)
        return _down() if what == "down" else _ps(opt_values)


def _up(options: Options) -> int:
    root, log, count = checkout_root(), TerminalLog(), str(options["machines"])
    if count and not (count.isascii() and count.isdigit() and 1 <= int(count) <= lab.MAX_MACHINES):
        raise ConfigError(
            f"--machines {count}: a lab has 1 to {lab.MAX_MACHINES} machines", hint="./doitw lab down takes it away"
        )
    try:
        lab.up(root, log, store=options["store"], count=int(count or 0))
    finally:
        log.close()
    looks = lab.machine_statuses(root)
    print("\n".join([*_table(looks), "", *_hints(), "", "differences from real machines:"]))
    print("\n".join(f"  {substitution}" for substitution in lab.SUBSTITUTIONS))
    return Exit.OK


def _down() -> int:
    removed = lab.down(checkout_root())
    print("\n".join(f"removed {name}" for name in removed) if removed else "no lab is up")
    return Exit.OK


def _ps(options: Options) -> int:
    looks = lab.machine_statuses(checkout_root())
    if options["json"]:
        print_json(as_json(looks, str(lab.ssh_program_folder(checkout_root())) if looks else ""))
    else:
        print("\n".join([*_table(looks), "", *_hints()]) if looks else "no lab is up")
    return Exit.OK if looks and all(look.engine for look in looks) else Exit.FAILED


def as_json(looks: tuple[MachineStatus, ...], path: str) -> Json:
    """Returns the value for ps --json."""
    rows: list[Json] = [dict(zip(COLUMNS, _row(look), strict=True)) for look in looks]
    return {"schema": SCHEMA, "registry": machines.REGISTRY, "path": path, "machines": rows}


def _row(look: MachineStatus) -> tuple[str, ...]:
    of = look.machine
    return (of.name, of.address, of.endpoint, of.store, look.engine, look.state)


def _table(looks: tuple[MachineStatus, ...]) -> list[str]:
    return format_table([COLUMNS, *map(_row, looks)])


def _hints() -> list[str]:
    path = shlex.quote(str(lab.ssh_program_folder(checkout_root())))
    return [
        f"the registry of pipeline.yaml is {machines.REGISTRY} there",
        f"for docker and ssh to find them: PATH={path}:$PATH",
    ]
