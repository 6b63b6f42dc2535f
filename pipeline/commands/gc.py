"""`./doitw gc`: lists what is old and how large it is, then removes it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.commands.base import JSON, GraphCommand, Options, print_json, refuse_words
from pipeline.commands.survey import SCHEMA
from pipeline.commands.text import counted, format_size
from pipeline.core import scratch
from pipeline.core.errors import ConfigError, Exit, HostError
from pipeline.core.locks import Holder
from pipeline.core.tables import format_table
from pipeline.graph.garbage import OUTSIDE, UNFINISHED, Item, find_garbage, item_at
from pipeline.graph.graph import Graph
from pipeline.graph.run.holders import find_holder, hold_free_tasks
from pipeline.graph.task import Json

DEFAULT_KEEP = 3


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """The items that can be removed, and notes about what was not looked at."""

    items: list[Item]
    notes: list[str]

    @property
    def bytes(self) -> int:
        """Returns the size of all items."""
        return sum(item.bytes for item in self.items)


class GcCommand(GraphCommand):
    """doit's plugin command `gc`."""

    name = "gc"
    doc_purpose = "remove old results: records, logs, artifacts, images here, on nodes, in the registry"
    doc_usage = "[--keep N] [--yes | --dry-run]"
    doc_description = (
        "Says counts and bytes first, and asks. What the kept records claim stays, and so does what a running task or "
        "any container uses. ~/.cache/tandem is left alone."
    )
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "name": "keep", "long": "keep", "type": int, "default": DEFAULT_KEEP, "metavar": "N",
            "help": "results and logs of each task to keep [default: %(default)s]",
        },
        {"name": "yes", "short": "y", "long": "yes", "type": bool, "default": False, "help": "do not ask"},
        {"name": "dry", "long": "dry-run", "type": bool, "default": False, "help": "only say what would be removed"},
        JSON,
    )  # fmt: skip

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """List the items, ask, and remove them; returns the exit code."""
        refuse_words(words, "gc")
        if options["keep"] < 1:
            raise ConfigError(f"--keep {options['keep']}: the latest result always stays", hint="keep 1 or more")
        if options["yes"] and options["dry"]:
            raise ConfigError("--yes and --dry-run cannot be combined", hint="leave one of them out")
        garbage = _find(graph, options["keep"], _busy(graph))
        if not options["json"]:
            print("\n".join(_text(garbage)))
        agreed = bool(garbage.items) and not options["dry"] and (options["yes"] or _asked(options))
        removed = _remove(graph, options["keep"], garbage) if agreed else []
        if options["json"]:
            print_json(_json(options["keep"], garbage, removed))
        elif agreed:
            print(f"removed {counted(len(removed), 'item')}, {format_size(sum(item.bytes for item in removed))}")
        elif garbage.items and not options["dry"]:
            print("nothing was removed; --yes removes it")
        for note in garbage.notes:
            sys.stderr.write(f"note: {note}\n")
        return Exit.OK


def _asked(options: Options) -> bool:
    if options["json"] or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input("remove it? [y/N] ").strip().lower() in ("y", "yes")


def _busy(graph: Graph) -> dict[str, Holder]:
    return {name: running for name in graph.tasks if (running := find_holder(graph, name))}


def _find(graph: Graph, keep: int, busy: Mapping[str, Holder]) -> Garbage:
    items, kept = find_garbage(graph, keep, busy)
    for folder in scratch.abandoned_folders():
        items += item_at(UNFINISHED, folder)
    notes = [f"{name} is running, in process {running.pid}" for name, running in busy.items()]
    if busy:
        notes.append("while a task is running, artifacts, images and the registry are left alone")
        return Garbage(items=items, notes=notes)
    # Only here: no other part of this command needs an engine.
    from pipeline.commands.gc_elsewhere import find_old_elsewhere
    from pipeline.commands.gc_images import find_old_images

    try:
        items += find_old_images(kept)
        elsewhere, left = find_old_elsewhere(graph.root, kept)
    except HostError as error:
        notes.append(f"images are left alone: {error}")
        return Garbage(items=items, notes=notes)
    return Garbage(items=[*items, *elsewhere], notes=[*notes, *left])


def _remove(graph: Graph, keep: int, agreed_to: Garbage) -> list[Item]:
    """Removes what was shown and still can go, now that no task can begin. Raises HostError, TandemError."""
    with hold_free_tasks(graph, graph.tasks) as busy:
        now = {(item.kind, item.name): item for item in _find(graph, keep, busy).items}
        agreed = [now[item.kind, item.name] for item in agreed_to.items if (item.kind, item.name) in now]
        from pipeline.commands.gc_elsewhere import remove_all

        # Records last: without them nobody would know any more whose the images are.
        return remove_all(agreed[::-1], agreed_to.notes)


def _text(garbage: Garbage) -> list[str]:
    if not garbage.items:
        return ["nothing to remove"]
    kinds = dict.fromkeys(item.kind for item in garbage.items)
    rows = []
    for kind in kinds:
        of_kind = [item for item in garbage.items if item.kind == kind]
        rows.append((f"{len(of_kind):5}", kind, format_size(sum(item.bytes for item in of_kind))))
        # They are not below artifacts/: the user must see them before agreeing.
        rows += [("", f"  {item.name}", format_size(item.bytes)) for item in of_kind if kind in OUTSIDE]
    return [
        "to remove:",
        *format_table(rows),
        f"{counted(len(garbage.items), 'item')} in total, {format_size(garbage.bytes)}",
    ]


def _json(keep: int, garbage: Garbage, removed: list[Item]) -> Json:
    gone = {(item.kind, item.name) for item in removed}
    items: list[Json] = [
        {"kind": item.kind, "name": item.name, "bytes": item.bytes, "removed": (item.kind, item.name) in gone}
        for item in garbage.items
    ]
    return {"schema": SCHEMA, "keep": keep, "bytes": garbage.bytes, "items": items, "notes": list[Json](garbage.notes)}
