"""What doitw refuses before it sets anything up."""

import os
import shutil
import subprocess  # the shell script itself is what is tested
from pathlib import Path

import pytest

from tests.flow.project import REPOSITORY


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose tooling says what it was called with."""
    for folder in (".venv/bin", ".venv/tandem", "lockfiles", "pipeline", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy2(REPOSITORY / "doitw", tmp_path)
    for name, copy in (("lockfiles/tooling.txt", "tooling.txt"), ("pipeline/tooling.py", "tooling.py")):
        shutil.copy2(REPOSITORY / name, tmp_path / name)
        shutil.copy2(REPOSITORY / name, tmp_path / ".venv/tandem" / copy)
    (tmp_path / ".venv/tandem/root").write_text(f"{tmp_path}\n")
    python = tmp_path / ".venv/bin/python"
    python.write_text('#!/bin/sh\nprintf "called with %s\\n" "$*"\n')
    python.chmod(0o755)
    return tmp_path


def doitw(checkout: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ./doitw."""
    argv = [os.fspath(checkout / "doitw"), *words]
    done = subprocess.run(argv, cwd=checkout / "elsewhere", capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [("TANDEM_LOCK=frozen",), ("-n", "4", "build", "a=b"), ("why", "a=b")])
def test_a_variable_behind_doitw_is_refused(checkout: Path, words: tuple[str, ...]) -> None:
    said = f"ERROR: '{words[-1]}' is no task; variables of the environment stand before ./doitw\n"
    assert doitw(checkout, *words) == (3, "", said)


@pytest.mark.parametrize("words", [("",), ("why", "")])
def test_an_empty_word_is_refused(checkout: Path, words: tuple[str, ...]) -> None:
    assert doitw(checkout, *words) == (3, "", "ERROR: a word is empty\n")


def test_pytest_takes_any_word(checkout: Path) -> None:
    code, out, err = doitw(checkout, "test", "tests/unit", "-k", "a=b")
    assert (code, err) == (0, "")
    assert "called with -m pytest tests/unit -k a=b\n" in out


def test_words_are_passed_on(checkout: Path) -> None:
    code, out, _ = doitw(checkout, "why", "build", "--json")
    assert code == 0
    assert out == f"called with {checkout}/.venv/bin/doit why build --json\n"
