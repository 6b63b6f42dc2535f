"""Reports errors of commands: one message, one hint, and the exit code of the failure."""

import getopt
import io
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from doit import doit_cmd
from doit.cmdparse import CmdParseError
from doit.exceptions import InvalidCommand, InvalidDodoFile, InvalidTask

from pipeline.core import redact
from pipeline.core.errors import ConfigError, Exit, TandemError
from pipeline.core.files import as_disk_failure
from pipeline.core.interrupts import interruptible


def exit_code_of(act: Callable[[], int]) -> int:
    """Returns the exit code of an act. A failure is one message and one hint on stderr; a bug is a traceback.

    Raises BrokenPipeError, which is for the command to handle.
    """
    with _streams_without_secrets():
        return _exit_code_of(act)


@contextmanager
def _streams_without_secrets() -> Iterator[None]:
    """Makes stdout and stderr accept any text, and take the secrets out of it."""
    before = sys.stdout, sys.stderr
    # Output to closed streams is dropped.
    streams = [stream or io.TextIOWrapper(io.BytesIO()) for stream in before]
    for stream in streams:
        # A file name need not be text, and a terminal need not know every character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (
        stream if isinstance(stream, redact.CleanStream) else cast("TextIO", redact.CleanStream(stream))
        for stream in streams
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _exit_code_of(act: Callable[[], int]) -> int:
    try:
        with interruptible():
            return act()
    except BrokenPipeError:
        raise
    except (CmdParseError, InvalidCommand, InvalidDodoFile, InvalidTask) as error:
        cause = error.__cause__
        return print_error(cause if isinstance(cause, TandemError) else ConfigError(str(error).strip()))
    except TandemError as error:
        return print_error(error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return Exit.INTERRUPTED
    except Exception as error:
        if isinstance(known := as_disk_failure(error), TandemError):
            return print_error(known)
        sys.stderr.write(f"this is a bug:\n{traceback.format_exc()}")
        return Exit.BUG


def print_error(error: TandemError) -> int:
    """Print an expected failure; returns its exit code."""
    sys.stderr.write(f"{error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
    return error.code


def parse_words(command: Any, in_args: Sequence[str]) -> tuple[Any, list[str]]:
    """Returns the options and the words of a command. Options may stand anywhere, also after a task's name.

    Raises ConfigError for an option that it does not have, and for a NAME=VALUE, which doit would take for a variable
    that nothing here reads.
    """
    variables = dict(doit_cmd._CMDLINE_VARS or {})  # noqa: SLF001  # doit has no other way to list them
    if variables:
        name, value = next(iter(variables.items()))
        raise ConfigError(
            f"'{name}={value}' is not a task",
            hint=f"put environment variables before the command: {name}={value} ./doitw …",
        )
    parser = command.cmdparser
    try:
        pairs, words = getopt.gnu_getopt(list(in_args), parser.get_short(), parser.get_long())
        options, _ = parser.parse([part for pair in pairs for part in pair if part])
    except (getopt.GetoptError, CmdParseError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"doit {command.name}: {reason}", hint=f"./doitw help {command.name}") from error
    return options, words
