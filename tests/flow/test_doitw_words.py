"""What doitw refuses before it sets anything up."""

import os
import shutil
import subprocess  # the shell script itself is what is tested
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.host import venv
from tests.flow.looking_project import Looking
from tests.flow.project import REPOSITORY, Done, ended


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose tooling says what it was called with."""
    for folder in (".venv/bin", ".venv/tandem", "lockfiles", "pipeline/host", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy2(REPOSITORY / "doitw", tmp_path)
    for name, copy in (("lockfiles/tooling.txt", "tooling.txt"), ("pipeline/host/venv.py", "venv.py")):
        shutil.copy2(REPOSITORY / name, tmp_path / name)
        shutil.copy2(REPOSITORY / name, tmp_path / ".venv/tandem" / copy)
    (tmp_path / ".venv/tandem/root").write_text(f"{tmp_path}\n")
    python = tmp_path / ".venv/bin/python"
    python.write_text('#!/bin/sh\nprintf "called with %s\\n" "$*"; echo "from $TANDEM_CWD"\n')
    python.chmod(0o755)
    return tmp_path


def doitw(checkout: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ./doitw."""
    argv = [os.fspath(checkout / "doitw"), *words]
    done = subprocess.run(argv, cwd=checkout / "elsewhere", capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [("TANDEM_LOCK=frozen",), ("-n", "4", "build", "a=b"), ("why", "a=b")])
def test_a_variable_after_doitw_is_refused(checkout: Path, words: tuple[str, ...]) -> None:
    said = f"ERROR: '{words[-1]}' is not a task. Put environment variables before the command: {words[-1]} ./doitw …\n"
    assert doitw(checkout, *words) == (3, "", said)


@pytest.mark.parametrize("words", [("",), ("why", "")])
def test_an_empty_argument_is_refused(checkout: Path, words: tuple[str, ...]) -> None:
    assert doitw(checkout, *words) == (3, "", "ERROR: empty argument\n")


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin/true", "/etc/hostname"])
def test_a_named_python_that_is_not_python_3_11_is_refused(
    checkout: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / ".venv/tandem/root").unlink()
    monkeypatch.setenv("TANDEM_PYTHON", python)
    said = f"ERROR: TANDEM_PYTHON: {python} is not Python 3.11 or newer\n"
    assert doitw(checkout, "list") == (4, "", said)


def test_set_up_takes_no_arguments(checkout: Path) -> None:
    assert doitw(checkout, "set-up", "x") == (3, "", "ERROR: set-up takes no arguments (got 'x')\n")
    assert doitw(checkout, "set-up")[0] == 0


def test_pytest_takes_any_argument(checkout: Path) -> None:
    code, out, err = doitw(checkout, "test", "tests/unit", "-k", "a=b")
    assert (code, err) == (0, "")
    assert "called with -m pytest tests/unit -k a=b\n" in out


@pytest.mark.parametrize("fails", ["tests/unit", "tests/e2e", "nothing"])
def test_all_suites_run_even_if_one_fails(checkout: Path, fails: str) -> None:
    python = checkout / ".venv/bin/python"
    python.write_text(f'{python.read_text()}case "$*" in *{fails}*) exit 1 ;; esac\n')
    code, out, _ = doitw(checkout, "test")
    assert code == int(fails != "nothing")
    assert "bin/doit" not in out
    suites = [word for line in out.splitlines() if "-m pytest" in line for word in line.split() if "tests/" in word]
    assert suites == ["tests/unit", "tests/flow", "tests/docker", "tests/e2e"]


def test_arguments_are_passed_on(checkout: Path) -> None:
    code, out, _ = doitw(checkout, "why", "build", "--json")
    assert code == 0
    assert out == f"called with {checkout}/.venv/bin/doit why build --json\nfrom {checkout}/elsewhere\n"


@pytest.mark.parametrize(
    ("words", "sets_up"),
    [
        (("lab", "up"), True),
        (("lab", "--store", "overlay2", "up"), True),
        (("lab", "ps"), False),
        (("lab", "down"), False),
        (("lab",), False),
        (("lab", "up", "--help"), False),
    ],
)
def test_of_the_lab_commands_only_up_needs_an_engine(checkout: Path, words: tuple[str, ...], sets_up: bool) -> None:
    code, out, _ = doitw(checkout, *words)
    assert code == 0
    assert ("called with -m pipeline.host.install" in out) == sets_up
    assert f"bin/doit {' '.join(words)}\n" in out


@pytest.fixture
def looking(tmp_path: Path) -> Looking:
    """A project with the script that stands for doit's own."""
    project = Looking(tmp_path / "toy")
    project.write("bin/doit", venv.DOIT_SCRIPT)
    return project


def from_below(looking: Looking, *words: str, env: Mapping[str, str] | None = None) -> Done:
    """Call the script in a sub-folder."""
    script = os.fspath(looking.root / "bin/doit")
    return ended(looking.start(*words, env=env, prefix=("sh", "-c", 'cd src && exec "$@"', "sh"), program=(script,)))


def test_doit_works_from_a_folder_below_and_puts_files_there(looking: Looking) -> None:
    done = from_below(looking, "graph", "--html", "x.html")
    assert (done.code, done.err) == (0, "")
    assert (looking.root / "src/x.html").exists()


def test_doit_refuses_an_empty_argument(looking: Looking) -> None:
    done = from_below(looking, "why", "")
    assert (done.code, done.out, done.err) == (3, "", "ERROR: empty argument\n")


@pytest.mark.parametrize("module", ["doit/__main__.py", "pipeline/commands/base.py", "dodo.py"])
def test_an_interrupt_while_doit_starts_shows_no_traceback(looking: Looking, module: str) -> None:
    looking.write("early/doit/__init__.py", "")
    looking.write(f"early/{module}" if module.startswith("doit") else module, "raise KeyboardInterrupt\n")
    env = {"PYTHONPATH": f"{looking.root}/early"} if module.startswith("doit") else {}
    done = from_below(looking, "status", env=env)
    assert (done.code, done.out) == (130, "")
    assert done.err in {"", "interrupted\n"}
