"""The only door to other programs: argv in, lines to the task's log or text out."""

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.log import Log

TAIL = 15
GRACE = 5.0
"""Seconds that programs together have between SIGTERM and SIGKILL."""
_live: set[subprocess.Popen[str]] = set()
_lock = threading.Lock()
_cancelled = threading.Event()
_put_off = _heard = False
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    lines: list[str] = []
    with ExitStack() as ends:
        with uninterrupted():
            process = _start(argv, env, cwd, merged=True, tidying=tidying)
            ends.callback(_forget, process)
            timer = threading.Timer(within, _kill, (process,))
            timer.daemon = True
            timer.start()
            ends.callback(timer.cancel)
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if not quiet:
                log.line(lines[-1])
        status = process.wait()
        timed_out = not timer.is_alive()
    _judge(argv, status, "\n".join(lines), within if timed_out else None, tidying=tidying)
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
    with ExitStack() as ends:
        with uninterrupted():
            process = _start(argv, env, cwd, merged=False, piped=stdin is not None)
            ends.callback(_forget, process)
        try:
            out, err = process.communicate(stdin, timeout=within)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            _judge(argv, -signal.SIGKILL, "", within)
            raise
    _judge(argv, process.returncode, err or out if process.returncode else out, None)
    return out


def cancel() -> None:
    """End every program that runs now and does not tidy up, and refuse to start another: the run was interrupted."""
    _cancelled.set()
    with _lock:
        live = list(_live)
    _end(live)


def kill() -> None:
    """End them at once. For a signal's handler: it waits for nothing, not even for a lock."""
    for process in list(_live):
        _kill(process)


def resume() -> None:
    """Allow programs again after cancel()."""
    _cancelled.clear()


def cancelled() -> bool:
    """Whether cancel() was called; long waits look here."""
    return _cancelled.is_set()


@contextmanager
def interruptible() -> Iterator[None]:
    """Have each of SIGNALS raise KeyboardInterrupt, never between a program's start and its being known; main thread.

    One that is ignored stays so, and so does one that somebody else hears.
    """
    mine = (signal.SIG_DFL, signal.default_int_handler)
    main = threading.current_thread() is threading.main_thread()
    before = {n: how for n in SIGNALS if main and (how := signal.getsignal(n)) in mine}
    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, how in before.items():
            signal.signal(number, how)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _heard
    if not _put_off:
        raise KeyboardInterrupt
    _heard = True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put an interrupt of the main thread off to the end of the block, as far as interruptible() hears it."""
    global _put_off, _heard
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, _put_off = _put_off, True
    try:
        yield
    finally:
        _put_off = outer
        if _heard and not outer:
            _heard = False
            raise KeyboardInterrupt


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
    if not tidying:
        with _lock:
            _live.add(process)
        if _cancelled.is_set():
            _kill(process)  # cancel() may have come while it was being started, and not have known of it
    return process


def _forget(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        _end([process])  # gently: half an installation is worse than none
        process.wait()
    with _lock:
        _live.discard(process)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        _kill(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    try:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
    finally:  # also when a second interrupt ends the wait
        for process in processes:
            if process.returncode is None:
                _kill(process)


def _kill(process: subprocess.Popen[str], how: int = signal.SIGKILL) -> None:
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        return
    except PermissionError:  # it runs as root, by sudo without a password
        argv = ["sudo", "-n", "kill", f"-{int(how)}", "--", f"-{process.pid}"]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=GRACE, check=False)


def _judge(argv: Sequence[str], status: int, output: str, too_long: float | None, *, tidying: bool = False) -> None:
    if _cancelled.is_set() and status and not tidying:
        raise Cancelled("interrupted")
    if too_long is not None and status:
        raise TandemError(f"{argv[0]} did not end within {too_long:g} s: {shlex.join(argv)}")
    if status:
        raise ProgramError(argv, status, output)
