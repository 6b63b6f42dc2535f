"""Starts other programs; no other module does. Their output goes to a task's log or is returned as text.

A program inherits only the environment variables of a list, so that no other variable can affect its result.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from pipeline.core import redact
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.interrupts import uninterrupted
from pipeline.core.log import Log

TAIL_LINES = 15
"""The number of output lines in an error message."""
GRACE_S = 5.0
"""The time that all programs together have between SIGTERM and SIGKILL."""
LINGER_S = 1.0
"""How long output is still read after a program has ended: a process that it left behind may hold the pipe open."""
POLL_INTERVAL_S = 0.1
PIPE_CHUNK_BYTES = 1 << 16
FIXED = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
UMASK = 0o022
# Lists of environment variables that a program inherits. A star stands for any part of a name.
SEALED = ("PATH", "TMPDIR")
"""For programs whose output ends up in an image: where programs and temporary files are, and nothing else."""
NETWORK = (
    *SEALED,
    *("HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_CACHE_HOME", "XDG_DATA_HOME"),
    *(name for proxy in ("http", "https", "ftp", "all", "no") for name in (f"{proxy}_proxy", f"{proxy}_proxy".upper())),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # Logins, and what keyrings and credential helpers need to find them.
    *("NETRC", "SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"),
    *("DBUS_SESSION_BUS_ADDRESS", "GNUPGHOME", "PASSWORD_STORE_DIR", "PYTHON_KEYRING_BACKEND"),
    *("KRB5CCNAME", "KRB5_CONFIG", "AWS_*", "AZURE_*", "GOOGLE_*", "CLOUDSDK_*"),
    # Where packages come from, and how. Settings that choose versions of packages are not inherited.
    *("APT_CONFIG", "UV_INDEX", "UV_INDEX_URL", "UV_INDEX_*_USERNAME", "UV_INDEX_*_PASSWORD", "UV_DEFAULT_INDEX"),
    *("UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"),
    *("UV_CONFIG_FILE", "UV_NO_CONFIG", "UV_KEYRING_PROVIDER", "UV_CREDENTIALS_DIR", "UV_INSECURE_HOST"),
    *("UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_OFFLINE", "UV_CACHE_DIR", "UV_NO_CACHE", "UV_CONCURRENT_DOWNLOADS"),
    *("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT", "UV_HTTP_CONNECT_TIMEOUT", "UV_HTTP_RETRIES"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE", "PIP_CACHE_DIR"),
    *("PIP_TRUSTED_HOST", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_KEYRING_PROVIDER", "PIP_NO_CACHE_DIR"),
    *("PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES", "PIP_USE_FEATURE"),
)
"""For programs that use the network as this machine is set up to: indexes, mirrors, proxies, certificates, logins."""
DOCKER = (
    *NETWORK,
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY"),
    *("DOCKER_AUTH_CONFIG", "DOCKER_API_VERSION", "BUILDX_CONFIG"),
)
"""For docker, its plugins and ssh: which engine to use, and how to reach it."""
_live: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()
_cancelled = threading.Event()


class ProgramError(TandemError):
    """A program ended with a non-zero status. The message has the last lines of its output."""

    def __init__(self, argv: Sequence[str], status: int, output: str) -> None:
        last_lines = "\n".join(output.splitlines()[-TAIL_LINES:])
        super().__init__(f"{argv[0]} ended with status {status}: {shlex.join(argv)}\n{last_lines}".rstrip())
        self.argv = tuple(argv)
        self.status = status
        self.output = output


def program_environment(inherit: Sequence[str], variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns a program's environment: the variables of `inherit`, taken from `variables`, and those of FIXED.

    `variables` are by default the environment of this process.
    """
    env = os.environ if variables is None else variables
    return {name: value for name, value in env.items() if _is_inherited(name, inherit)} | FIXED


def uninherited_variables(inherit: Sequence[str]) -> list[str]:
    """Returns the variables of this process that are not in `inherit`, for programs that a library starts."""
    return sorted(name for name in os.environ if not _is_inherited(name, inherit) and name not in FIXED)


def _is_inherited(name: str, inherit: Sequence[str]) -> bool:
    return name in inherit or any(fnmatchcase(name, entry) for entry in inherit if "*" in entry)


def run(
    argv: Sequence[str],
    *,
    log: Log,
    inherit: Sequence[str] = SEALED,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 3600,
    quiet: bool = False,
    tidying: bool = False,
) -> str:
    """Runs a program to its end and writes its output (stdout and stderr) to the log; returns that output.

    The program inherits the variables that `inherit` lists, and gets those of `env`. A `quiet` program's output is not
    logged. A program that cleans up (`tidying`) runs after cancel(), too.
    Raises ProgramError for a non-zero status, HostError if the program does not exist, TandemError at the time-out,
    Cancelled after cancel().
    """
    log.line(redact.clean("$ " + shlex.join(argv)))
    lines: list[str] = []

    def keep(line: str) -> None:
        lines.append(line)
        if not quiet:
            log.line(redact.clean(line))

    reader = _LineReader(keep)
    with ExitStack() as cleanup:
        with uninterrupted():
            process = _start(argv, program_environment(inherit) | dict(env or {}), cwd, merged=True, tidying=tidying)
            cleanup.callback(_forget, process)
        assert process.stdout is not None
        timed_out = _communicate(process, {process.stdout: reader.feed}, b"", timeout_s)
        reader.end()
    _raise_for_status(argv, process.returncode, "\n".join(lines), timeout_s if timed_out else None, tidying=tidying)
    return "\n".join(lines)


def capture(
    argv: Sequence[str],
    *,
    inherit: Sequence[str] = SEALED,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 60,
    stdin: str | None = None,
) -> str:
    """Runs a program to its end and returns its stdout; stderr is part of the error if it fails.

    The arguments and errors are those of run().
    """
    output_chunks: list[bytes] = []
    error_chunks: list[bytes] = []
    with ExitStack() as cleanup:
        with uninterrupted():
            process = _start(
                argv, program_environment(inherit) | dict(env or {}), cwd, merged=False, piped=stdin is not None
            )
            cleanup.callback(_forget, process)
        assert process.stdout is not None
        assert process.stderr is not None
        readers = {process.stdout: output_chunks.append, process.stderr: error_chunks.append}
        timed_out = _communicate(process, readers, (stdin or "").encode(), timeout_s)
    output, errors = _decoded(output_chunks), _decoded(error_chunks)
    message = errors or output if process.returncode else output
    _raise_for_status(argv, process.returncode, message, timeout_s if timed_out else None)
    return output


def _decoded(chunks: Sequence[bytes]) -> str:
    return b"".join(chunks).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


class _LineReader:
    """Splits bytes into lines as they come. A carriage return ends a line, too."""

    def __init__(self, handle_line: Callable[[str], None]) -> None:
        self._handle_line = handle_line
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._unfinished = ""

    def feed(self, chunk: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + self._decoder.decode(chunk)).split("\n")
        for line in lines:
            self._handle_line(line)

    def end(self) -> None:
        rest = self._unfinished + self._decoder.decode(b"", final=True)
        if rest:
            self._handle_line(rest.removesuffix("\n"))


def _communicate(
    process: subprocess.Popen[bytes],
    readers: Mapping[IO[bytes], Callable[[bytes], None]],
    stdin: bytes,
    timeout_s: float,
) -> bool:
    """Serves a program's pipes until it ends, and kills it after `timeout_s` seconds; returns whether it was killed.

    Does not wait for other processes that hold the pipes, such as a daemon that the program started.
    """
    deadline, killed, ended = time.monotonic() + timeout_s, False, 0.0
    with selectors.DefaultSelector() as selector:
        for pipe, reader in readers.items():
            selector.register(pipe, selectors.EVENT_READ, _read_from(reader))
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, _write_to(process.stdin, stdin))
        while selector.get_map():
            for key, _ in selector.select(POLL_INTERVAL_S):
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
    while process.poll() is None:  # it closed its output before it ended
        try:
            process.wait(None if killed else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            killed = True
            _kill(process)
    return killed


def _read_from(reader: Callable[[bytes], None]) -> Callable[[int], bool]:
    """Returns a function that reads one chunk from a pipe, and tells whether there may be more."""

    def read(pipe: int) -> bool:
        chunk = os.read(pipe, PIPE_CHUNK_BYTES)
        if chunk:
            reader(chunk)
        return chunk != b""

    return read


def _write_to(stdin: IO[bytes], content: bytes) -> Callable[[int], bool]:
    """Returns a function that writes a part of `content` to a program, and tells whether there is more.

    A program that closes its stdin gets no more.
    """
    unwritten = memoryview(content)

    def write(pipe: int) -> bool:
        nonlocal unwritten
        try:
            unwritten = unwritten[os.write(pipe, unwritten) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            unwritten = unwritten[:0]
        if not unwritten:
            stdin.close()
        return bool(unwritten)

    return write


def which(program: str) -> str | None:
    """Returns the path of a program, or None. Looks in the sbin folders too, which a plain user's PATH lacks."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin")


def cancel() -> None:
    """Ends every running program, except those that clean up, and lets no other start: the run was interrupted."""
    _cancelled.set()
    with _lock:
        live = list(_live)
    _end(live)


def kill() -> None:
    """Kills every running program, except those that clean up. Waits for nothing, so a signal handler may call it."""
    for process in list(_live):
        _kill(process)


def resume() -> None:
    """Lets programs start again after cancel(). Tests use it."""
    _cancelled.clear()


def cancelled() -> bool:
    """Returns whether cancel() was called. Long waits and loops have to ask."""
    return _cancelled.is_set()


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
            # In a process group of its own, its children end with it, and Ctrl-C reaches only us.
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
            _kill(process)  # cancel() may have run during the start, and have missed it
    return process


def _forget(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _end([process])  # with SIGTERM first: half an installation is worse than none
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


def _kill(process: subprocess.Popen[bytes], signal_number: int = signal.SIGKILL) -> None:
    try:
        os.killpg(process.pid, signal_number)
    except ProcessLookupError:
        return
    except PermissionError:  # it runs as root, through sudo without a password
        argv = ["sudo", "-n", "kill", f"-{int(signal_number)}", "--", f"-{process.pid}"]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=GRACE_S, check=False)


def _raise_for_status(
    argv: Sequence[str], status: int, output: str, timeout_s: float | None, *, tidying: bool = False
) -> None:
    if _cancelled.is_set() and status and not tidying:
        raise Cancelled("interrupted")
    if timeout_s is not None and status:
        raise TandemError(f"{argv[0]} did not end within {timeout_s:g} s: {shlex.join(argv)}")
    if status:
        raise ProgramError(argv, status, output)
