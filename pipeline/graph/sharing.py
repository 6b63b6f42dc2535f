"""Records that checkouts share. A record is used only if it proves to be what was asked for."""

from typing import Protocol

from pipeline.core.errors import TandemError
from pipeline.core.log import Log
from pipeline.core.procs import cancelled
from pipeline.graph.fingerprint import fingerprint
from pipeline.graph.records import Record, Records, parse_record, record_text
from pipeline.graph.task import MALFORMED, Task


class SharedRecords(Protocol):
    """A store of records of several checkouts. If it does not answer, it has no records, and the log says so."""

    def get(self, task: str, fingerprint: str, log: Log) -> bytes | None:
        """Returns the text of a record or None. Raises TandemError for something that cannot be a record."""

    def put(self, task: str, fingerprint: str, text: bytes, log: Log) -> None:
        """Keep a record's text for others, if this checkout may. Raises TandemError."""


def adopt_shared(share: SharedRecords | None, records: Records, task: Task, key: str | None, log: Log) -> bool:
    """Keeps a record that another checkout shares; returns whether there was one.

    Only its outputs are believed: they make claims on the world, which are checked as for any record. An error
    is named in the log, and the record counts as absent.
    """
    if share is None or not task.shared or key is None or records.read(task.name, key):
        return False
    try:
        text = share.get(task.name, key, log)
        if text is None:
            return False
        record = _proved(text, task, key)
    except TandemError as error:
        if cancelled():
            raise
        log.step(f"a shared result is not used: {error}")
        return False
    log.step("another checkout has a result of the same inputs")
    records.write(record)
    return True


def publish(share: SharedRecords | None, task: Task, record: Record, log: Log) -> None:
    """Shares a record with other checkouts. A failure must not undo the work: it is only logged."""
    if share is None or not task.shared:
        return
    try:
        share.put(record.task, record.fingerprint, record_text(record).encode(), log)
    except TandemError as error:
        if cancelled():
            raise
        log.step(f"the result is not shared: {error}")


def _proved(text: bytes, task: Task, key: str) -> Record:
    """Returns the record, if it is one of this task and its inputs are today's. Raises TandemError."""
    try:
        record = parse_record(text, task.name, key)
        if fingerprint(task.name, record.inputs) != key:
            raise ValueError("its inputs do not come to its fingerprint")
        # Another version may have recorded other outputs than those that today's code asks for.
        task.world(record.outputs)
    except MALFORMED as error:
        raise TandemError(f"it is not a record of {task.name} {key[:12]}…: {error!r}") from error
    return record
