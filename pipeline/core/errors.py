"""Errors that an operator can act on. Each class has an exit code."""

from enum import IntEnum

from pipeline.core import redact


class Exit(IntEnum):
    """The exit codes of `doit` and `./doitw`; README lists them."""

    OK = 0
    FAILED = 1
    BUG = 2
    CONFIG = 3
    HOST = 4
    BUSY = 5
    INTERRUPTED = 130


class TandemError(Exception):
    """An expected failure. It is printed as one message and one hint, without secrets and never as a traceback."""

    code = Exit.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self._hint = hint

    def __str__(self) -> str:
        return redact.clean(super().__str__())

    @property
    def hint(self) -> str:
        """What a person can do about it, or ""."""
        return redact.clean(self._hint)

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint


class ConfigError(TandemError):
    """The configuration or the command line is wrong."""

    code = Exit.CONFIG


class HostError(TandemError):
    """This machine lacks something that a task needs, or its Docker engine fails."""

    code = Exit.HOST


class BusyError(TandemError):
    """Another process held a lock past the time-out."""

    code = Exit.BUSY


class Cancelled(TandemError):
    """The run was interrupted."""

    code = Exit.INTERRUPTED
