"""doit's dependency database, with nothing in it: whether a task is up to date is decided by our records.

doit writes its own only when the process ends, trusts mtimes, knows one result a task, and does not know the world.
"""


class NoDB:
    """The interface that doit's `Dependency` uses of a backend (doit/dependency.py); stores nothing."""

    desc = "keep nothing: the records in artifacts/ decide"

    def __init__(self, name: str, codec: object, *, module_name: str | None = None) -> None:
        self.name = name
        self.codec = codec
        self.module_name = module_name

    def dump(self) -> None:
        """Nothing to write."""

    def set(self, task_id: str, dependency: str, value: object) -> None:
        """Nothing is kept."""

    def get(self, task_id: str, dependency: str) -> None:
        """Nothing is known."""

    def in_(self, _task_id: str) -> bool:
        """No task is known."""
        return False

    def remove(self, task_id: str) -> None:
        """Nothing to remove."""

    def remove_all(self) -> None:
        """Nothing to remove."""
