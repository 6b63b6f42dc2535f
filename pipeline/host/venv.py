"""Makes .venv from the hash-locked lockfiles/tooling.txt. doitw runs it with the machine's own Python.

It imports only the standard library. It works with and without root, and if Python lacks ensurepip, as Debian's bare
python3 does.
"""

import ast
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.core import procs, redact
from pipeline.core.errors import HostError, TandemError
from pipeline.core.interrupts import interruptible
from pipeline.core.locks import locked_folder
from pipeline.core.log import ForwardingLog, Log, step

LOCK_FILE = Path("lockfiles/tooling.txt")
# pip reads no settings file: the settings that say where packages come from are passed as variables.
PIP_ENV = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1"}
MAX_SIGN_CHARS = 160
"""The length of a line that shows that work goes on."""
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_SCRIPT = """\
import sys

sys.path.insert(0, {wheel!r})
from pip._vendor import certifi

certifi.where = lambda: {bundle!r}
from pip._internal.cli.main import main

sys.exit(main())
"""
# Replaces doit's own script, which does not find dodo.py and pyproject.toml from a sub-folder, and which would use the
# package of this checkout for another one. `python` is beside it, so no path needs quoting. Like doitw, it ignores the
# caller's settings of Python.
DOIT_SCRIPT = """\
#!/bin/sh
''':'
unset PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTHONSTARTUP PYTHONOPTIMIZE PYTHONPYCACHEPREFIX PYTHONDONTWRITEBYTECODE
unset PYTHONNODEBUGRANGES PYTHONWARNINGS PYTHONINSPECT PYTHONPLATLIBDIR PYTHONCASEOK PYTHONUSERBASE PYTHONEXECUTABLE
export PYTHONUTF8=1
exec "${0%/*}/python" "$0" "$@"
'''
import os
import signal
import sys

try:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    from doit.__main__ import main

    os.environ.setdefault("TANDEM_CWD", os.getcwd())
    root = os.getcwd()
    while root != "/" and not (os.path.isfile(root + "/dodo.py") and os.path.isdir(root + "/pipeline")):
        root = os.path.dirname(root)
    if root != "/":
        sys.path.insert(0, root)
        if not {"-f", "--file", "-d", "--dir"} & set(sys.argv):
            os.chdir(root)
    if "" in sys.argv:
        sys.stderr.write("ERROR: empty argument\\n")  # doit does not expect one
        sys.exit(3)
    sys.exit(main())
except KeyboardInterrupt:
    raise SystemExit(130) from None  # at the start; a command handles it itself
finally:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it has ended
"""


class Printer:
    """A log on stderr, for the time before the tooling exists. In alive() it prints a line every `every` s."""

    def __init__(self, every: float = 25) -> None:
        self._every = every
        self._printed_at = self._began = time.monotonic()
        self._newest = ""
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        """Prints the line."""
        with self._lock:
            self._newest, self._began = text.strip(), time.monotonic()
            self._print(text)

    def step(self, text: str) -> None:
        """Prints the line."""
        self.line(text)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        """Keeps the progress for the next line of alive()."""
        of = f" of {total:.0f}" if total else ""
        with self._lock:
            self._newest, self._began = f"{title}: {done:.0f}{of} {unit}", time.monotonic()

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Prints what is being done whenever nothing else was printed for a while."""
        done = threading.Event()
        pulse = threading.Thread(target=self._beat, args=(done,), daemon=True)
        pulse.start()
        try:
            yield
        finally:
            done.set()
            pulse.join()

    def _beat(self, done: threading.Event) -> None:
        while not done.wait(min(1.0, self._every)):
            with self._lock:
                now = time.monotonic()
                if now - self._printed_at >= self._every:
                    work = self._newest.removesuffix(" …")[:MAX_SIGN_CHARS] or "at work"
                    self._print(f"{work} … {now - self._began:.0f} s")

    def _print(self, text: str) -> None:
        self._printed_at = time.monotonic()
        print(redact.clean(text), file=sys.stderr, flush=True)


class InstallerLog(ForwardingLog):
    """Passes on which package an installer is at; the rest is in the error message if it fails."""

    def line(self, text: str) -> None:
        """Passes on the name and version of "Collecting …", and that the packages are being installed."""
        words = text.split()
        if words[:1] == ["Collecting"]:
            super().line(f"  {words[1]}")
        elif words[:2] == ["Installing", "collected"]:
            super().line("  installing them")


def is_ready(root: Path) -> bool:
    """Returns whether .venv was completed, here, from the current lock by the current module. doitw checks the same."""
    stamps = root / ".venv/tandem"
    try:
        return (
            os.access(root / ".venv/bin/python", os.X_OK)
            and (stamps / "root").read_text() == f"{root}\n"
            and (stamps / "tooling.txt").read_bytes() == (root / LOCK_FILE).read_bytes()
            and (stamps / "venv.py").read_bytes() == Path(__file__).read_bytes()
        )
    except OSError:
        return False


def make_venv(root: Path, log: Log) -> None:
    """Makes .venv again unless it is ready. A second caller waits for the first.

    Raises HostError if this machine's Python cannot make one, TandemError if packages cannot be downloaded.
    """
    with locked_folder(root):  # no file that git would see
        if is_ready(root):
            return
        with step(log, "tooling: .venv from lockfiles/tooling.txt"):
            _build(root, log)


def _build(root: Path, log: Log) -> None:
    venv = root / ".venv"
    if venv.is_symlink():
        venv.unlink()
    shutil.rmtree(venv, ignore_errors=True)
    if importlib.util.find_spec("venv") is None:
        raise HostError(f"{sys.executable} came without its venv module", hint="install python3 (not -minimal)")
    # This path has the version in it: if the system moves to another Python, the link breaks and .venv is made again.
    python = os.path.realpath(sys.executable)
    with tempfile.TemporaryDirectory() as scratch:
        procs.run([python, "-m", "venv", *_without_pip(), str(venv)], log=InstallerLog(log))
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check"]
        options += ["--no-compile"]
        pip = _pip(venv, Path(scratch), log)
        env = {**_settings(pip), **PIP_ENV}
        argv = [*pip, "install", *options, "-r", str(root / LOCK_FILE)]
        procs.run(argv, log=InstallerLog(log), inherit=procs.NETWORK, env=env)
    (site,) = venv.glob("lib/python3.*/site-packages")
    # A caller that does not let Python write bytecode would compile all of it at every start.
    with suppress(procs.ProgramError):  # some files are not valid Python, and are never imported
        sources = [str(site), str(root / "pipeline"), str(root / "dodo.py")]
        procs.run([str(venv / "bin/python"), "-m", "compileall", "-qq", "-j", "0", *sources], log=InstallerLog(log))
    (site / "tandem.pth").write_text(pth_line(root))
    (venv / "bin/doit").write_text(DOIT_SCRIPT)
    stamps = venv / "tandem"
    stamps.mkdir()
    shutil.copyfile(root / LOCK_FILE, stamps / "tooling.txt")
    shutil.copyfile(__file__, stamps / "venv.py")
    os.sync()
    (stamps / "root").write_text(f"{root}\n")  # last: without it, all of the above is done again


def pth_line(root: Path) -> str:
    """Returns the .pth line that puts the checkout on Python's path. It is ASCII, so that any locale can read it."""
    return f"import os, sys; sys.path.append(os.fsdecode({os.fsencode(root)!r}))\n"


def _settings(pip: Sequence[str]) -> dict[str, str]:
    """Returns this machine's settings for pip on indexes, proxies and certificates, as environment variables."""
    settings: dict[str, str] = {}
    lines = procs.capture([*pip, "config", "list"], inherit=procs.NETWORK).splitlines()
    for section in ("global.", "install.", ":env:."):
        for line in lines:
            key, _, value = line.removeprefix(section).partition("=")
            name = "PIP_" + key.upper().replace("-", "_")
            if line.startswith(section) and name in procs.NETWORK:
                settings[name] = str(ast.literal_eval(value))
    redact.register_in(settings)
    return settings


def _without_pip() -> list[str]:
    return [] if importlib.util.find_spec("ensurepip") else ["--without-pip"]


def _pip(venv: Path, scratch: Path, log: Log) -> Sequence[str]:
    """Returns the command of a pip that installs into `venv`: its own, this Python's, or that of python3-pip-whl."""
    python = str(venv / "bin/python")
    if not _without_pip():
        return [python, "-m", "pip"]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--python", python]
    return [python, str(_debians_pip(scratch, log))]


def _debians_pip(scratch: Path, log: Log) -> Path:
    """Downloads Debian's pip into a scratch folder with apt; returns its program. Needs no root.

    Debian's pip trusts the system's certificates. If there are none yet, it gets those of Debian's package.
    """
    if not shutil.which("apt-get"):
        raise HostError("this Python has neither ensurepip nor pip", hint="install its venv module or pip")
    bundle = Path(os.environ.get("SSL_CERT_FILE") or CA_BUNDLE)
    packages = ["python3-pip-whl"] if bundle.exists() else ["python3-pip-whl", "ca-certificates"]
    try:
        _fetch(packages, scratch, log)
        (wheel,) = scratch.glob("usr/share/python-wheels/pip-*.whl")
    except (TandemError, ValueError) as error:
        raise HostError(
            f"this Python has neither ensurepip nor pip, and apt cannot download pip: {error}",
            hint="apt-get install python3-venv",
        ) from error
    if not bundle.exists():
        bundle = scratch / "certificates"
        authorities = sorted(scratch.glob("usr/share/ca-certificates/mozilla/*.crt"))
        bundle.write_bytes(b"\n".join(path.read_bytes() for path in authorities))
    program = scratch / "run-pip"  # a name that Python cannot import
    program.write_text(PIP_SCRIPT.format(wheel=str(wheel), bundle=str(bundle)))
    return program


def _fetch(packages: Sequence[str], scratch: Path, log: Log) -> None:
    """Unpacks Debian packages into a scratch folder, which has its own package lists and cache."""
    (scratch / "lists/partial").mkdir(parents=True)
    (scratch / "cache/archives/partial").mkdir(parents=True)
    options = [
        f"Dir::State::Lists={scratch}/lists",
        f"Dir::Cache={scratch}/cache",
        "APT::Sandbox::User=root",  # otherwise root's apt changes to a user who cannot write here
        "Acquire::Languages=none",
    ]
    apt = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
    procs.run([*apt, "update"], log=log, inherit=procs.NETWORK)
    procs.run([*apt, "download", *packages], log=log, inherit=procs.NETWORK, cwd=scratch)
    for deb in scratch.glob("*.deb"):
        procs.run(["dpkg-deb", "-x", str(deb), str(scratch)], log=log)


def run_setup(work: Callable[[Log], None]) -> int:
    """Runs a part of the set-up and prints its error, as doit cannot do that yet; returns the exit code."""
    printer = Printer()
    try:
        with interruptible(), printer.alive():
            work(printer)
    except TandemError as error:
        print(f"ERROR: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        procs.cancel()
        return 130
    return 0


def main() -> int:
    """Makes the tooling of the checkout that this module is in; returns the exit code."""
    return run_setup(lambda log: make_venv(Path(__file__).resolve().parents[2], log))


if __name__ == "__main__":
    sys.exit(main())
