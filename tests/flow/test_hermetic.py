"""The caller's environment, and the place where all this lies, decide no byte and break no set-up."""

import base64
import hashlib
import os
import pickle
import subprocess  # what is tested is a process of our own in another locale
import sys
import time
import venv as python_venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.models import DebianBase, DebianImage, Python
from pipeline.core import procs, store
from pipeline.core.errors import TandemError
from pipeline.core.log import NullLog
from pipeline.host import venv
from pipeline.image import base, wheels
from pipeline.lock import lock
from pipeline.lock.contents import DebianLock
from pipeline.lock.resolver import Wheel
from tests import hostile
from tests.filestore import put_into_store
from tests.flow.project import REPOSITORY

IMAGE = DebianImage(
    base=DebianBase(debian="trixie", packages=("base-files", "base-passwd", "dash", "libc-bin", "python3")),
    python=Python(version="3.13", requirements=("idna",)),
)
INFO = "demo-1.0.dist-info"
FILES = {
    "demo/__init__.py": b'"""A docstring."""\nWORDS = {"a", "b", "c"}\n\n\ndef main(x=1):\n    assert x\n',
    "demo/vendored/x-1.dist-info/INSTALLER": b"somebody\n",
    "demo/\u00e9t\u00e9.py": b"x = 1\n",
    "demo-1.0.data/scripts/ours": b"#!python\nprint(2)\n",
    "demo-1.0.data/scripts/of-env": b"#!/usr/bin/env python3\nprint(2)\n",
    "demo-1.0.data/scripts/of-sh": b"#!/bin/sh\nexec true\n",
    "demo-1.0.data/data/share/demo/x": b"1",
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n[gui_scripts]\ndemo-gui = demo:main\n",
}


def demo(folder: Path) -> Wheel:
    """A wheel with scripts of every kind, and a file whose name has a letter outside ASCII; the store has it too."""
    file = folder / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        rows = ""
        for name, content in FILES.items():
            archive.writestr(zipfile.ZipInfo(name), content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows += f"{name},sha256={digest},{len(content)}\n"
        archive.writestr(zipfile.ZipInfo(f"{INFO}/RECORD"), f"{rows}{INFO}/RECORD,,\n")
    sha256 = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    return Wheel("demo", "1.0", (sha256,), file.name, file.stat().st_size)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> DebianLock:
    folder = tmp_path_factory.mktemp("root")
    found = lock.lock_image("tiny", IMAGE, folder, "", NullLog())
    assert isinstance(found, DebianLock)
    wheel = demo(folder)
    put_into_store(folder / wheel.file)
    return replace(found, wheels=tuple(sorted((*found.wheels, wheel))))


@contextmanager
def hostility(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything wrong at once: variables, umask, time zone, the folder that we stand in."""
    for name, value in hostile.environment(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    time.tzset()
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
        monkeypatch.undo()
        time.tzset()


def test_a_hostile_environment_gives_the_same_layers(
    locked: DebianLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, odd = tmp_path / "plain", hostile.path(tmp_path)
    plain.mkdir()
    expected = (
        base.make_root_filesystem(locked, plain / "base", NullLog()),
        wheels.make_layers(locked, plain / "wheels", NullLog()),
    )
    python_venv.create(odd / "venv")
    cache = store.folder().parent.parent
    with hostility(odd, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))  # with the wheel in it
        monkeypatch.setattr(sys, "executable", str(odd / "venv/bin/python"))
        got = (
            base.make_root_filesystem(locked, odd / "base", NullLog()),
            wheels.make_layers(locked, odd / "wheels", NullLog()),
        )
    assert got == expected
    tars = {path.name: path.read_bytes() for path in (plain / "wheels").glob("*.tar")}
    assert {path.name: path.read_bytes() for path in (odd / "wheels").glob("*.tar")} == tars
    places = [os.fspath(part).encode() for part in (tmp_path, sys.prefix)]
    assert not any(place in content for content in tars.values() for place in places)
    assert any(b"/ours\0" in content and b"#!/usr/bin/python3\nprint(2)\n" in content for content in tars.values())
    assert any(b"__pycache__/__init__.cpython-313.pyc" in content for content in tars.values())


def test_a_locale_that_cannot_spell_a_file_is_an_error_and_no_smaller_image(locked: DebianLock, tmp_path: Path) -> None:
    code = (
        "import pickle, sys\nfrom pathlib import Path\nfrom pipeline.core.log import NullLog\n"
        "from pipeline.image import wheels\nlocked = pickle.loads(sys.stdin.buffer.read())\n"
        "wheels.install_wheels(locked, wheels.fetch_wheels(locked, NullLog()), Path(sys.argv[1]), NullLog())\n"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        input=pickle.dumps(locked), env=env, capture_output=True, check=False,
    )  # fmt: skip
    assert b"is in its RECORD and was not installed" in done.stderr
    assert done.returncode == 1


def test_a_program_hears_what_is_on_its_list_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hostility(hostile.path(tmp_path), monkeypatch):
        monkeypatch.setenv("UV_INDEX_OURS_PASSWORD", "x")
        monkeypatch.setenv("DOCKER_HOST", "tcp://x")
        heard = {
            inherited: dict(
                line.split("=", 1) for line in procs.capture(["env"], inherit=inherited, env={"X": "1"}).splitlines()
            )
            for inherited in (procs.SEALED, procs.NETWORK, procs.DOCKER)
        }
        mode = procs.capture(["sh", "-c", "umask"])
    sealed, network, docker = heard.values()
    assert sealed.keys() == {"PATH", "TMPDIR", "LC_ALL", "TZ", "X"}
    assert (sealed["LC_ALL"], sealed["TZ"], mode.strip()) == ("C.UTF-8", "UTC", "0022")
    assert "UV_INDEX_OURS_PASSWORD" in network
    assert "DOCKER_HOST" not in network
    assert docker.keys() - network.keys() == {"DOCKER_HOST"}
    allowed = {"HOME", "USER", "LOGNAME", "UV_CACHE_DIR", "LC_ALL", "TZ"}
    assert docker.keys() & hostile.NAMES == allowed


def test_the_tooling_is_made_whole_and_compiled_in_a_hostile_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = hostile.path(tmp_path)
    (root / "lockfiles").mkdir()
    (root / "pipeline").mkdir()
    for name in ("dodo.py", "pipeline/x.py"):
        (root / name).write_text("x = 1\n")
    wheel = demo(tmp_path)
    (root / venv.LOCK_FILE).write_text(f"demo==1.0 --hash={wheel.hashes[0]}\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (root / "pip.conf").write_text(
        f"[global]\ntarget = {tmp_path}/elsewhere\nno-index = true\nfind-links = {tmp_path}\n"
    )
    with hostility(root, monkeypatch):
        monkeypatch.setenv("PIP_CONFIG_FILE", str(root / "pip.conf"))
        venv.make_venv(root, NullLog())
    assert venv.is_ready(root)
    (site,) = root.glob(".venv/lib/python3.*/site-packages")
    for folder in (site / "demo", root / "pipeline", root):
        assert list(folder.glob("__pycache__/*.pyc"))
    assert not (tmp_path / "elsewhere").exists()


def test_pip_is_told_where_packages_come_from_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (
        "[global]\nindex-url = http://a.invalid\ntarget = /x\ncert = /c\n[install]\nindex-url = http://b.invalid\n"
    )
    (tmp_path / "pip.conf").write_text(settings)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": str(tmp_path / "pip.conf"), "TARGET": "/y", "CERT": "/d"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    found = venv._settings([sys.executable, "-m", "pip"])
    assert {name: found[name] for name in ("PIP_INDEX_URL", "PIP_CERT")} == {
        "PIP_INDEX_URL": "http://b.invalid",
        "PIP_CERT": "/d",
    }
    assert "PIP_TARGET" not in found


CALLS = (lambda argv: procs.run(argv, log=NullLog(), timeout_s=1), lambda argv: procs.capture(argv, timeout_s=1))


@pytest.mark.parametrize("call", CALLS)
def test_a_program_is_not_waited_for_after_its_end_because_of_what_it_left_behind(call: object) -> None:
    began = time.monotonic()
    said = call(["sh", "-c", "echo said; setsid sleep 8 & exit 0"])  # type: ignore[operator]
    assert said.strip() == "said"
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("call", CALLS)
def test_the_time_of_a_program_is_up_also_if_its_output_is_kept_open(call: object) -> None:
    began = time.monotonic()
    with pytest.raises(TandemError, match="did not end within 1 s"):
        call(["sh", "-c", "setsid sleep 8 & exec sleep 8"])  # type: ignore[operator]
    with pytest.raises(TandemError, match="did not end within 1 s"):
        call(["sh", "-c", "exec >/dev/null 2>&1; sleep 8"])  # type: ignore[operator]
    assert time.monotonic() - began < 7


def test_a_program_reads_much_and_says_much_in_any_pieces() -> None:
    text = "\u00e9" * 300_001 + "\n"
    assert procs.capture(["cat"], stdin=text) == text
    assert procs.capture(["true"], stdin=text) == ""
    assert procs.run(["sh", "-c", r"printf 'a\r\nb\rc\n\nd'"], log=NullLog()) == "a\nb\nc\n\nd"


def test_docker_by_python_on_whales_hears_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.host import buildkit

    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\nenv -0 >"$1"; umask >>"$1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with hostility(hostile.path(tmp_path), monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        expected = procs.program_environment(procs.DOCKER)
        call = buildkit._client(tmp_path / "running").client_config.client_call
        subprocess.run([*call, str(tmp_path / "said")], check=True)
    *variables, mode = (tmp_path / "said").read_text().split("\0")
    heard = dict(one.split("=", 1) for one in variables)
    assert expected.items() <= heard.items()
    assert heard.keys() & hostile.NAMES == expected.keys() & hostile.NAMES
    assert mode.strip() == "0022"


def test_what_doitw_starts_hears_none_of_the_callers_settings_of_python(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "doit").write_text(venv.DOIT_SCRIPT)
    (folder / "doit").chmod(0o755)
    (folder / "python").write_text("#!/bin/sh\nenv\n")
    (folder / "python").chmod(0o755)
    env = {**hostile.environment(tmp_path), "PATH": os.environ["PATH"]}
    said = subprocess.run([folder / "doit", "list"], env=env, capture_output=True, text=True, check=True).stdout
    heard = dict(line.split("=", 1) for line in said.splitlines() if line.startswith("PYTHON"))
    assert heard["PYTHONUTF8"] == "1"
    assert not heard.keys() & {"PYTHONPATH", "PYTHONHOME", "PYTHONOPTIMIZE", "PYTHONDONTWRITEBYTECODE"}
    text = (REPOSITORY / "doitw").read_text()
    assert [line for line in venv.DOIT_SCRIPT.splitlines() if line.startswith("unset")] == [
        line for line in text.splitlines() if line.startswith("unset")
    ]
