"""The only door to other programs: argv in, lines to the task's log or text out.

A program's environment is made from a list, not inherited: what is not on the list cannot decide what it does.
"""

import codecs
import io
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from pipeline.core import redact
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.log import Log

TAIL_LINES = 15
GRACE_S = 5.0
"""Seconds that programs together have between SIGTERM and SIGKILL."""
LINGER_S = 1.0
"""Seconds that a program's output is still heard after its end: a process that it left behind may hold the pipe."""
PULSE_S = 0.1
FIXED = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
UMASK = 0o022
# What a program may hear of the caller, by name; a star stands for the rest of one.
SEALED = ("PATH", "TMPDIR")
"""For what decides bytes: where programs and room are, and nothing else."""
NETWORK = (
    *SEALED,
    *("HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_CACHE_HOME", "XDG_DATA_HOME"),
    *(name for proxy in ("http", "https", "ftp", "all", "no") for name in (f"{proxy}_proxy", f"{proxy}_proxy".upper())),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # Logins, and what keyrings and credential helpers need to find them.
    *("NETRC", "SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"),
    *("DBUS_SESSION_BUS_ADDRESS", "GNUPGHOME", "PASSWORD_STORE_DIR", "PYTHON_KEYRING_BACKEND"),
    *("KRB5CCNAME", "KRB5_CONFIG", "AWS_*", "AZURE_*", "GOOGLE_*", "CLOUDSDK_*"),
    # Where packages come from, and how: settings of this machine. What is to be had of them is not heard.
    *("APT_CONFIG", "UV_INDEX", "UV_INDEX_*", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"),
    *("UV_CONFIG_FILE", "UV_NO_CONFIG", "UV_KEYRING_PROVIDER", "UV_CREDENTIALS_DIR", "UV_INSECURE_HOST"),
    *("UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_OFFLINE", "UV_CACHE_DIR", "UV_NO_CACHE", "UV_CONCURRENT_DOWNLOADS"),
    *("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT", "UV_HTTP_CONNECT_TIMEOUT", "UV_HTTP_RETRIES"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE", "PIP_CACHE_DIR"),
    *("PIP_TRUSTED_HOST", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_KEYRING_PROVIDER", "PIP_NO_CACHE_DIR"),
    *("PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"),
)
"""For what asks the network in this machine's manner: indexes, mirrors, proxies, certificates, logins."""
DOCKER = (
    *NETWORK,
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY"),
    *("DOCKER_AUTH_CONFIG", "BUILDX_CONFIG"),
)
"""For docker, its plugins and ssh: which engine, and how it is reached."""
_live: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()
_cancelled = threading.Event()
_put_off = _heard = False
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProgramError(TandemError):
    """A program ended with a non-zero status; `status` and the last lines of `output` say more."""

    def __init__(self, argv: Sequence[str], status: int, output: str) -> None:
        said = "\n".join(output.splitlines()[-TAIL_LINES:])
        super().__init__(f"{argv[0]} ended with status {status}: {shlex.join(argv)}\n{said}".rstrip())
        self.argv = tuple(argv)
        self.status = status
        self.output = output


def program_environment(inherit: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """A program's environment: of `given` (by default this process's) what is on the list, and FIXED."""
    env = os.environ if given is None else given
    return {name: value for name, value in env.items() if _is_inherited(name, inherit)} | FIXED


def uninherited_variables(inherit: Sequence[str]) -> list[str]:
    """The names of this process's environment that are not on the list, for who cannot start a program by run()."""
    return sorted(name for name in os.environ if not _is_inherited(name, inherit) and name not in FIXED)


def _is_inherited(name: str, inherit: Sequence[str]) -> bool:
    return name in inherit or any(name.startswith(one[:-1]) for one in inherit if one.endswith("*"))


def run(
    argv: Sequence[str],
    *,
    log: Log,
    inherit: Sequence[str] = SEALED,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 3600,
    quiet: bool = False,
    tidying: bool = False,
) -> str:
    """Run a program to its end, its output line by line in the log; returns that output (stdout and stderr).

    It inherits the variables that `inherit` lists; `env` is laid over them. `within` is in seconds.
    What takes away what was made elsewhere is `tidying`: it runs after cancel() too. Raises ProgramError on a non-zero
    status, HostError if the program is not there, TandemError when it runs too long, Cancelled after cancel().
    """
    log.line(redact.clean("$ " + shlex.join(argv)))
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        if not quiet:
            log.line(redact.clean(line))

    ear = _LineReader(hear)
    with ExitStack() as ends:
        with uninterrupted():
            process = _start(argv, program_environment(inherit) | dict(env or {}), cwd, merged=True, tidying=tidying)
            ends.callback(_forget, process)
        assert process.stdout is not None
        timed_out = _hear(process, {process.stdout: ear.hear}, b"", within)
        ear.end()
    _judge(argv, process.returncode, "\n".join(lines), within if timed_out else None, tidying=tidying)
    return "\n".join(lines)


def capture(
    argv: Sequence[str],
    *,
    inherit: Sequence[str] = SEALED,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 60,
    stdin: str | None = None,
) -> str:
    """Run a program to its end and return its stdout; stderr is part of the error if it fails.

    `inherit` and `env` are run()'s. Raises what run() raises.
    """
    said: list[bytes] = []
    complaints: list[bytes] = []
    with ExitStack() as ends:
        with uninterrupted():
            process = _start(
                argv, program_environment(inherit) | dict(env or {}), cwd, merged=False, piped=stdin is not None
            )
            ends.callback(_forget, process)
        assert process.stdout is not None
        assert process.stderr is not None
        ears = {process.stdout: said.append, process.stderr: complaints.append}
        timed_out = _hear(process, ears, (stdin or "").encode(), within)
    out, err = (_text(b"".join(part)) for part in (said, complaints))
    _judge(argv, process.returncode, err or out if process.returncode else out, within if timed_out else None)
    return out


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


class _LineReader:
    """Bytes as they come, handed on line by line; a carriage return ends a line too."""

    def __init__(self, hand_on: Callable[[str], None]) -> None:
        self._hand_on = hand_on
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._begun = ""

    def hear(self, raw: bytes) -> None:
        *lines, self._begun = (self._begun + self._decoder.decode(raw)).split("\n")
        for line in lines:
            self._hand_on(line)

    def end(self) -> None:
        rest = self._begun + self._decoder.decode(b"", final=True)
        if rest:
            self._hand_on(rest.removesuffix("\n"))


def _hear(
    process: subprocess.Popen[bytes],
    ears: Mapping[IO[bytes], Callable[[bytes], None]],
    given: bytes,
    within: float,
) -> bool:
    """Hear a program until it has ended, and kill it after `within` seconds; returns whether that was needed.

    Who else holds its pipes then, as a daemon that it started does, is not waited for.
    """
    deadline, killed, ended = time.monotonic() + within, False, 0.0
    with selectors.DefaultSelector() as selector:
        for pipe, ear in ears.items():
            selector.register(pipe, selectors.EVENT_READ, _listener(ear))
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, _teller(process.stdin, given))
        while selector.get_map():
            for key, _ in selector.select(PULSE_S):
                if not key.data(key.fd):
                    selector.unregister(key.fd)
            now = time.monotonic()
            if process.poll() is None:
                if now > deadline and not killed:
                    killed = True
                    _kill(process)
                continue
            ended = ended or now
            if now > ended + LINGER_S:
                break
    while process.poll() is None:  # its output has ended before it
        try:
            process.wait(None if killed else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            killed = True
            _kill(process)
    return killed


def _listener(ear: Callable[[bytes], None]) -> Callable[[int], bool]:
    """What hands on a part of a program's output, and says whether there may be more."""

    def hear(pipe: int) -> bool:
        said = os.read(pipe, 1 << 16)
        if said:
            ear(said)
        return said != b""

    return hear


def _teller(stdin: IO[bytes], given: bytes) -> Callable[[int], bool]:
    """What writes a part of a program's stdin, and says whether there is more; one that reads no more gets no more."""
    left = memoryview(given)

    def tell(pipe: int) -> bool:
        nonlocal left
        try:
            left = left[os.write(pipe, left) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            left = left[:0]
        if not left:
            stdin.close()
        return bool(left)

    return tell


def which(program: str) -> str | None:
    """Returns the path of a program, or None. Looks in the sbin folders too, which a plain user's PATH lacks."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin")


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

    One that is ignored stays so, and so does one that somebody else inherit.
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
    env: Mapping[str, str],
    cwd: Path | None,
    *,
    merged: bool,
    piped: bool = False,
    tidying: bool = False,
) -> subprocess.Popen[bytes]:
    if _cancelled.is_set() and not tidying:
        raise Cancelled("interrupted")
    try:
        process = subprocess.Popen(
            list(argv),
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            umask=UMASK,
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


def _forget(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _end([process])  # gently: half an installation is worse than none
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with _lock:
        _live.discard(process)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        _kill(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    try:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
    finally:  # also when a second interrupt ends the wait
        for process in processes:
            if process.returncode is None:
                _kill(process)


def _kill(process: subprocess.Popen[bytes], how: int = signal.SIGKILL) -> None:
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        return
    except PermissionError:  # it runs as root, by sudo without a password
        argv = ["sudo", "-n", "kill", f"-{int(how)}", "--", f"-{process.pid}"]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=GRACE_S, check=False)


def _judge(argv: Sequence[str], status: int, output: str, too_long: float | None, *, tidying: bool = False) -> None:
    if _cancelled.is_set() and status and not tidying:
        raise Cancelled("interrupted")
    if too_long is not None and status:
        raise TandemError(f"{argv[0]} did not end within {too_long:g} s: {shlex.join(argv)}")
    if status:
        raise ProgramError(argv, status, output)
