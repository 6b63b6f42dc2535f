"""The records of finished tasks: one small file for each task and fingerprint, without times."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from pipeline.core.errors import HostError
from pipeline.core.files import replace_link, write_whole
from pipeline.graph.fingerprint import result_digest
from pipeline.graph.keys import folder_name
from pipeline.graph.task import Outputs

SCHEMA = 1
LATEST = "latest"


class Record(Struct, frozen=True, kw_only=True):
    """The outputs that a task made, and the value of each of its inputs by key, for comparison."""

    task: str
    fingerprint: str
    inputs: Mapping[str, str]
    outputs: Outputs

    @property
    def digest(self) -> str:
        """Returns the identity of the result."""
        return result_digest(self.outputs)


class Records:
    """The records below one folder (`artifacts/records`).

    A damaged record counts as absent and is named in `notes`. It is moved aside if this process `may_change` files.
    """

    def __init__(self, folder: Path, aside: Path) -> None:
        self._folder = folder
        self._aside = aside
        self.may_change = False
        self.notes: list[str] = []

    def path(self, task: str, fingerprint: str) -> Path:
        """Returns the file of a record."""
        return self._folder / folder_name(task) / f"{fingerprint}.json"

    def read(self, task: str, fingerprint: str) -> Record | None:
        """Returns the record of this result, or None if no record can be trusted. Raises HostError."""
        path = self.path(task, fingerprint)
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            return parse_record(text, task, fingerprint)
        except (ValueError, TypeError, KeyError) as error:
            self._damaged(path, error)
            return None

    def set_aside(self, record: Record, error: Exception) -> None:
        """Count a record as damaged whose outputs its task does not understand."""
        reason = ValueError(f"{record.task} does not understand its outputs: {error!r}")
        self._damaged(self.path(record.task, record.fingerprint), reason)

    def write(self, record: Record) -> None:
        """Keep a record in one step; it is on the disk before this returns. Raises HostError."""
        write_whole(self.path(record.task, record.fingerprint), record_text(record))
        self.set_latest(record)

    def set_latest(self, record: Record) -> None:
        """Make this the task's newest result (`latest` beside the records). Raises HostError."""
        path = self.path(record.task, record.fingerprint)
        replace_link(path.with_name(LATEST), path.name)

    def latest(self, task: str) -> Record | None:
        """Returns the newest result, for comparison, or None."""
        try:
            name = (self._folder / folder_name(task) / LATEST).readlink()
        except OSError:
            return None
        return self.read(task, name.stem)

    def all_of(self, task: str) -> Iterator[Record]:
        """Yields all records of a task."""
        for path in sorted((self._folder / folder_name(task)).glob("*.json")):
            if record := self.read(task, path.stem):
                yield record

    def _damaged(self, path: Path, error: Exception) -> None:
        note = f"{path}: damaged record ({error}); it counts as absent"
        target = self._aside / f"{path.parent.name}-{path.name}"
        if self.may_change:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
                note += f" and is kept as {target}"
            except OSError as failure:
                note += f"; it cannot be moved to {target}: {failure.strerror}"
        if note not in self.notes:
            self.notes.append(note)


def record_text(record: Record) -> str:
    """Returns a record as text."""
    value = {
        "schema": SCHEMA,
        "task": record.task,
        "fingerprint": record.fingerprint,
        "inputs": dict(record.inputs),
        "outputs": record.outputs,
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def parse_record(text: bytes, task: str, fingerprint: str) -> Record:
    """Returns the record in a text. Raises ValueError, TypeError or KeyError if it is not one."""
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(fields, dict):
        raise TypeError("not a mapping")
    if fields["schema"] != SCHEMA:
        raise ValueError(f"schema {fields['schema']}, not {SCHEMA}")
    if (fields["task"], fields["fingerprint"]) != (task, fingerprint):
        raise ValueError(f"it is about {fields['task']} {fields['fingerprint']}")
    if not isinstance(fields["inputs"], dict) or not isinstance(fields["outputs"], dict):
        raise TypeError("inputs and outputs are not mappings")
    return Record(task=task, fingerprint=fingerprint, inputs=fields["inputs"], outputs=fields["outputs"])
