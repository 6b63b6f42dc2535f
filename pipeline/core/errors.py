"""The failures that an operator can act on, and the exit code of each."""

from enum import IntEnum

from pipeline.core import redact


class Exit(IntEnum):
    """Process exit codes; documented in README."""

    OK = 0
    FAILED = 1
    BUG = 2
    CONFIG = 3
    HOST = 4
    BUSY = 5
    INTERRUPTED = 130


class TandemError(Exception):
    """An expected failure: printed as one message and one hint, never as a traceback. Neither holds a secret."""

    code = Exit.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self._hint = hint

    def __str__(self) -> str:
        return redact.clean(super().__str__())

    @property
    def hint(self) -> str:
        """What to do about it; empty if nobody knows."""
        return redact.clean(self._hint)

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint


class ConfigError(TandemError):
    """The configuration or the command line is wrong."""

    code = Exit.CONFIG


class HostError(TandemError):
    """This machine lacks something that a task needs."""

    code = Exit.HOST


class BusyError(TandemError):
    """Another run held a task past the time-out."""

    code = Exit.BUSY


class Cancelled(TandemError):
    """The run was interrupted while this task worked."""

    code = Exit.INTERRUPTED
