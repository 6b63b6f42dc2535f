"""How a command of ours ends when something is wrong: one message, one hint, the exit code of the failure."""

import io
import sys
import traceback
from collections.abc import Callable

from doit.cmdparse import CmdParseError
from doit.exceptions import InvalidCommand, InvalidDodoFile, InvalidTask

from pipeline.errors import ConfigError, Exit, TandemError


def worded(act: Callable[[], int]) -> int:
    """The exit code of an act; every failure is one message and one hint on stderr, and a bug its traceback.

    Raises BrokenPipeError: what that means is the command's own matter.
    """
    for stream in (sys.stdout, sys.stderr):
        # A file name need not be text, and a terminal need not know every character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return act()
    except BrokenPipeError:
        raise
    except (CmdParseError, InvalidCommand, InvalidDodoFile, InvalidTask) as error:
        cause = error.__cause__
        return refuse(cause if isinstance(cause, TandemError) else ConfigError(str(error).strip()))
    except TandemError as error:
        return refuse(error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return Exit.INTERRUPTED
    except Exception:
        sys.stderr.write(f"this is a bug:\n{traceback.format_exc()}")
        return Exit.BUG


def refuse(error: TandemError) -> int:
    """Say an expected failure; returns its exit code."""
    sys.stderr.write(f"{error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
    return error.code
