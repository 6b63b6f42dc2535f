"""Finds what a checkout keeps and no record needs any more, so that it can be listed before it is removed."""

import re
import shutil
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pipeline.core.files import write_failure
from pipeline.graph.decide import Decision, decide_all
from pipeline.graph.graph import Graph
from pipeline.graph.keys import canonical_json, folder_name
from pipeline.graph.records import LATEST, Record
from pipeline.graph.task import MALFORMED

CONTENT_ADDRESSED = ("base", "wheels", "models", "readings")
"""The folders below artifacts/ in which each entry is made by a task and named after its content."""
IMAGES, NODES, MANIFESTS = OUTSIDE = ("images", "images on nodes", "manifests in the registry")
"""The kinds of items that the command `gc` adds: this module does not know engines."""
UNFINISHED = "unfinished work"
HASH = re.compile(r"[0-9a-f]{32,}")


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something to remove: its kind (plural, for people), a name, its size in bytes."""

    kind: str
    name: str
    bytes: int
    remove: Callable[[], None] = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class KeptReferences:
    """The references of kept records: paths that they claim, and every hash that they mention.

    `ours` are the hashes that any record of this checkout mentions, those that are about to go included; `going` are
    task and fingerprint of these.
    """

    paths: frozenset[Path]
    hashes: frozenset[str]
    ours: frozenset[str]
    going: frozenset[tuple[str, str]] = frozenset()

    def mentions(self, text: str) -> bool:
        """Returns whether a name contains one of the hashes."""
        return any(digest in self.hashes for digest in HASH.findall(text))

    def lets_go(self, text: str) -> bool:
        """Returns whether a name contains a hash that only records to be removed mention: it is this checkout's."""
        return not self.mentions(text) and any(digest in self.ours for digest in HASH.findall(text))


def find_garbage(graph: Graph, keep: int, busy: Container[str]) -> tuple[list[Item], KeptReferences]:
    """Returns what can be removed, and the references of the records that stay.

    Of each task these stay: the newest `keep` results, the latest, the one that fits today's inputs, as many logs, and
    all that belongs to a task in `busy`. Artifacts are not among the items if any task is busy: nobody knows what it
    is about to claim. Raises what look() raises.
    """
    decisions = decide_all(graph)
    retained: list[Record] = []
    going: set[tuple[str, str]] = set()
    items: list[Item] = []
    task_of_folder = {folder_name(name): name for name in graph.tasks}
    for name, decision in decisions.items():
        records = list(graph.records.all_of(name))
        staying = _staying(graph, decision, records, keep) if name not in busy else records
        retained += staying
        going |= {(name, record.fingerprint) for record in records if record not in staying}
        if name not in busy:
            items += _records(graph, name, {record.fingerprint for record in staying})
            items += _logs(graph.artifacts / "logs" / folder_name(name), keep)
            items += _all(UNFINISHED, graph.artifacts / "scratch" / folder_name(name))
    for folder in ("records", "logs", "scratch"):
        for path in _below(graph.artifacts / folder):
            if path.name not in task_of_folder:
                items += item_at("results and logs of tasks that are no more", path)
    items += _all("damaged records", graph.artifacts / "aside")
    kept = replace(_kept(graph, retained), going=frozenset(going))
    if not any(name in busy for name in graph.tasks):
        items += _artifacts(graph, kept)
    return items, kept


def _staying(graph: Graph, decision: Decision, records: list[Record], keep: int) -> list[Record]:
    latest = graph.records.latest(decision.task)
    newest = sorted(records, key=lambda record: -_written(graph, record))
    needed = {decision.fingerprint, latest.fingerprint if latest else None}
    needed |= {record.fingerprint for record in newest[:keep]}
    return [record for record in records if record.fingerprint in needed]


def _written(graph: Graph, record: Record) -> int:
    with suppress(FileNotFoundError):
        return graph.records.path(record.task, record.fingerprint).stat().st_mtime_ns
    return 0


def _records(graph: Graph, task: str, stay: set[str]) -> Iterator[Item]:
    for path in _below(graph.records.path(task, "").parent):
        if path.suffix == ".json" and path.stem not in stay:
            yield from item_at("old records", path)


def _logs(folder: Path, keep: int) -> Iterator[Item]:
    latest = folder / LATEST
    last = latest.readlink().name if latest.is_symlink() else ""
    # Their names are times.
    for path in sorted(folder.glob("*.log"), reverse=True)[keep:]:
        if path.name != last:
            yield from item_at("old logs", path)


def _artifacts(graph: Graph, kept: KeptReferences) -> Iterator[Item]:
    depth = len(graph.artifacts.parts) + 2
    claimed = {path.parts[:depth] for path in kept.paths}
    for folder in CONTENT_ADDRESSED:
        for path in _below(graph.artifacts / folder):
            if path.parts not in claimed and not kept.mentions(path.name):
                yield from item_at("artifacts", path)


def _kept(graph: Graph, retained: list[Record]) -> KeptReferences:
    paths: set[Path] = set()
    hashes: set[str] = set()
    for record in retained:
        hashes.update(HASH.findall(canonical_json(record.outputs)))
        # A record of another version may not have what today's code asks it for; its hashes still count.
        with suppress(*MALFORMED):
            for claim in graph.tasks[record.task].world(record.outputs):
                hashes.update(HASH.findall(canonical_json(dict(claim.what))))
                if "path" in claim.what:
                    paths.add(graph.root / str(claim.what["path"]))
    return KeptReferences(paths=frozenset(paths), hashes=frozenset(hashes), ours=frozenset(_ours(graph)))


def _ours(graph: Graph) -> Iterator[str]:
    """Yields every hash in any record's text: removed tasks and damaged records made images, too."""
    for folder in _below(graph.artifacts / "records"):
        for path in folder.glob("*.json"):
            with suppress(FileNotFoundError):
                yield from HASH.findall(path.read_text(encoding="utf-8", errors="replace"))


def _all(kind: str, folder: Path) -> Iterator[Item]:
    for path in _below(folder):
        yield from item_at(kind, path)


def item_at(kind: str, path: Path) -> Iterator[Item]:
    """Yields a file or folder as an item; nothing if it is gone already."""
    # What another process removes meanwhile needs no removing.
    with suppress(FileNotFoundError):
        yield Item(kind=kind, name=str(path), bytes=_bytes(path), remove=partial(_remove, path))


def _below(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _bytes(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_bytes(inner) for inner in path.iterdir())


def _remove(path: Path) -> None:
    """Raises HostError if it cannot be removed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise write_failure(path, error) from error
