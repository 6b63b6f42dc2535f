"""The only door to other programs: argv in, lines to the task's log or text out."""

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import Cancelled, HostError, TandemError
from pipeline.log import Log

TAIL = 15
_live: set[subprocess.Popen[str]] = set()
_lock = threading.Lock()
_cancelled = threading.Event()


class ProgramError(TandemError):
    """A program ended with a non-zero status; `status` and the last lines of `output` say more."""

    def __init__(self, argv: Sequence[str], status: int, output: str) -> None:
        said = "\n".join(output.splitlines()[-TAIL:])
        super().__init__(f"{argv[0]} ended with status {status}: {shlex.join(argv)}\n{said}".rstrip())
        self.argv = tuple(argv)
        self.status = status
        self.output = output


def run(
    argv: Sequence[str],
    *,
    log: Log,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 3600,
    quiet: bool = False,
    tidying: bool = False,
) -> str:
    """Run a program to its end, its output line by line in the log; returns that output (stdout and stderr).

    `env` is laid over this process's environment. `within` is in seconds. What takes away what was made elsewhere is
    `tidying`: it runs after cancel() too. Raises ProgramError on a non-zero status, HostError if the program is not
    there, TandemError when it runs too long, Cancelled after cancel().
    """
    log.line("$ " + shlex.join(argv))
    process = _start(argv, env, cwd, merged=True, tidying=tidying)
    lines: list[str] = []
    timer = threading.Timer(within, _kill, (process,))
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if not quiet:
                log.line(lines[-1])
        status = process.wait()
    finally:
        timed_out = not timer.is_alive()
        timer.cancel()
        _forget(process)
    _judge(argv, status, "\n".join(lines), within if timed_out else None)
    return "\n".join(lines)


def capture(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 60,
    stdin: str | None = None,
) -> str:
    """Run a program to its end and return its stdout; stderr is part of the error if it fails.

    Raises what run() raises.
    """
    process = _start(argv, env, cwd, merged=False, piped=stdin is not None)
    try:
        out, err = process.communicate(stdin, timeout=within)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate()
        _judge(argv, -signal.SIGKILL, "", within)
        raise
    finally:
        _forget(process)
    _judge(argv, process.returncode, err or out if process.returncode else out, None)
    return out


def cancel() -> None:
    """End every program that runs now, and refuse to start another: the run was interrupted."""
    _cancelled.set()
    with _lock:
        live = list(_live)
    for process in live:
        _kill(process, signal.SIGTERM)
    for process in live:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            _kill(process)


def resume() -> None:
    """Allow programs again after cancel()."""
    _cancelled.clear()


def cancelled() -> bool:
    """Whether cancel() was called; long waits look here."""
    return _cancelled.is_set()


def _start(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: Path | None,
    *,
    merged: bool,
    piped: bool = False,
    tidying: bool = False,
) -> subprocess.Popen[str]:
    if _cancelled.is_set() and not tidying:
        raise Cancelled("interrupted")
    try:
        process = subprocess.Popen(
            list(argv),
            env={**os.environ, **env} if env is not None else None,
            cwd=cwd,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            errors="replace",
            # A group of its own: what it starts ends with it, and Ctrl-C reaches us first.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise TandemError(f"{cwd}: no such folder") from error
        raise HostError(f"{argv[0]} is not installed", hint="./doitw host says what is missing") from error
    with _lock:
        _live.add(process)
    if _cancelled.is_set() and not tidying:
        _kill(process)  # cancel() may have come while it was being started, and not have known of it
    return process


def _forget(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        _kill(process)
        process.wait()
    with _lock:
        _live.discard(process)


def _kill(process: subprocess.Popen[str], how: int = signal.SIGKILL) -> None:
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        return


def _judge(argv: Sequence[str], status: int, output: str, too_long: float | None) -> None:
    if _cancelled.is_set() and status:
        raise Cancelled("interrupted")
    if too_long is not None and status:
        raise TandemError(f"{argv[0]} did not end within {too_long:g} s: {shlex.join(argv)}")
    if status:
        raise ProgramError(argv, status, output)
