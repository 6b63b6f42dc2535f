"""Tells a failure that another attempt may get over from one that it cannot."""


class AttemptError(Exception):
    """One attempt failed, for the reason that is its message."""

    def __init__(self, reason: str, *, crashed: bool = False, again: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed
        """The emulator crashed, which says nothing about what was tried."""
        self.again = again
        """A new attempt may succeed."""
