"""doitw and the tooling's lock, as far as files tell; tests/docker/test_fresh_machine.py runs them."""

import re
import sys
import time
import tomllib
from pathlib import Path

import pytest
from doit.doit_cmd import DoitMain
from packaging.requirements import Requirement

from pipeline.core.log import NullLog
from pipeline.host import venv

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / venv.LOCK_FILE).read_text()


def entries() -> dict[str, str]:
    """Version by name of all that the lock pins."""
    found = re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE)
    return dict(found)


@pytest.mark.parametrize(
    "asked", [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"]["test"]]
)
def test_the_lock_fits_the_requirements_in_pyproject(asked: str) -> None:
    requirement = Requirement(asked)
    assert requirement.specifier.contains(entries()[requirement.name.lower()])


def test_the_lock_holds_names_versions_and_hashes_only() -> None:
    for line in LOCK.splitlines():
        assert re.fullmatch(
            r"[a-z0-9-]+==\S+( ; [A-Za-z_ ='0-9!<>.]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line
        ), line


def test_every_pin_has_a_hash() -> None:
    for block in re.split(r"\n(?! )", LOCK.strip()):
        assert "--hash=sha256:" in block, block


def test_every_command_of_doit_but_run_lab_and_advise_is_known_to_do_without_an_engine() -> None:
    script = (ROOT / "doitw").read_text()
    looking = {
        word for line in re.findall(r"^ +(.*)\) return 1 ;;", script, re.MULTILINE) for word in line.split(" | ")
    }
    commands = {command.get_name() for command in DoitMain.DOIT_CMDS} | set(
        PYPROJECT["tool"]["doit"]["plugins"]["command"]
    )
    assert commands - looking == {"run", "lab", "advise"}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A checkout whose tooling was made to the end."""
    for folder in (".venv/bin", ".venv/tandem", "lockfiles"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch(0o755)
    (tmp_path / venv.LOCK_FILE).write_text("a==1\n")
    (tmp_path / ".venv/tandem/tooling.txt").write_text("a==1\n")
    (tmp_path / ".venv/tandem/venv.py").write_bytes(Path(venv.__file__).read_bytes())
    (tmp_path / ".venv/tandem/root").write_text(f"{tmp_path}\n")
    return tmp_path


def test_completed_tooling_is_ready(made: Path) -> None:
    assert venv.is_ready(made)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / venv.LOCK_FILE).write_text("a==2\n"),
        lambda root: (root / ".venv/tandem/root").unlink(),
        lambda root: (root / ".venv/tandem/root").write_text("/where/it/was\n"),
        lambda root: (root / ".venv/tandem/venv.py").write_text("older\n"),
        lambda root: (root / ".venv/bin/python").unlink(),
    ],
    ids=["other lock", "killed", "moved", "other module", "its Python went away"],
)
def test_tooling_is_not_ready_after(made: Path, change: object) -> None:
    assert callable(change)
    change(made)
    assert not venv.is_ready(made)


def test_only_the_packages_of_an_installer_are_shown() -> None:
    kept = NullLog()
    names = venv.InstallerLog(kept)
    names.line("Looking in indexes: somewhere")
    names.line("Collecting doit==0.37.0 (from -r lock (line 1))")
    names.line("Installing collected packages: doit, uv")
    assert kept.lines == ["  doit==0.37.0", "  installing them"]


def said(capsys: pytest.CaptureFixture[str], lines: int) -> list[str]:
    """The first lines of stderr, once there are that many."""
    text, until = "", time.monotonic() + 20
    while text.count("\n") < lines and time.monotonic() < until:
        time.sleep(0.01)
        text += capsys.readouterr().err
    return text.splitlines()[:lines]


def test_a_silent_set_up_shows_what_it_is_doing(capsys: pytest.CaptureFixture[str]) -> None:
    printer = venv.Printer(every=0.05)
    with printer.alive():
        printer.line("  installing them")
        first, *others = said(capsys, 3)
        assert first == "  installing them"
        assert [other.partition(" … ")[0] for other in others] == ["installing them"] * 2
        printer.progress("Docker engine", 3, None, "s")
        assert said(capsys, 4)[-1].startswith("Docker engine: 3 s … ")
        printer.line("tooling: .venv …")
        assert said(capsys, 4)[-1].startswith("tooling: .venv … ")
        assert "… …" not in said(capsys, 1)[0]
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_set_up_that_prints_lines_shows_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    printer = venv.Printer(every=5)
    with printer.alive():
        for _ in range(12):
            printer.line("Get:1 a package")
            time.sleep(0.1)
    assert set(capsys.readouterr().err.splitlines()) == {"Get:1 a package"}


def test_the_checkout_is_importable_whatever_its_path_and_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    line = venv.pth_line(Path("/home/ü 'x'"))
    assert line.isascii()
    monkeypatch.setattr(sys, "path", [])
    exec(line)
    assert sys.path == ["/home/ü 'x'"]
