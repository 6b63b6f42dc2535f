"""What the Python probe finds out of a program's own help."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.probes import python_facts

ALL = "--nnodes --node-rank --master-addr --master-port --headless"
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a `vllm` whose entry point is `main()` of this source."""

    def install(source: str) -> None:
        (tmp_path / "vllm_of_the_test.py").write_text(f"import sys\n\n{source}")
        info = tmp_path / "vllm-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm_of_the_test:main\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "vllm_of_the_test", raising=False)
        importlib.invalidate_caches()

    return install


def help_of(**answers: str) -> str:
    """Returns the source of a `vllm` that prints these answers, by the value of --help, and refuses any other."""
    return (
        "def main():\n"
        f"    answers = {answers!r}\n"
        "    serve, _, value = (*sys.argv[1:2], *sys.argv[2].partition('=')[1:])\n"
        "    print(answers.get(value or 'plain') or sys.exit(2))\n"
        "    sys.exit(0)\n"
    )


def test_options_that_the_whole_help_lists_are_taken(install: Install) -> None:
    argv = [*sys.argv]
    install(help_of(all=f"usage: vllm serve\n  {ALL}\n", plain="more with --help=all"))
    assert python_facts.serve_options("") == {"missing": []}
    assert sys.argv == argv


def test_an_older_vllm_without_help_all_is_asked_for_its_help(install: Install) -> None:
    install(help_of(plain=ALL))
    assert python_facts.serve_options("") == {"missing": []}


def test_options_that_no_help_lists_are_missing(install: Install) -> None:
    install(help_of(all="--port --master-addr-of-something", plain="--nnodes"))
    missing = ["--node-rank", "--master-addr", "--master-port", "--headless"]
    assert python_facts.serve_options("") == {"missing": missing}


def test_a_vllm_that_prints_no_help_cannot_be_asked(install: Install) -> None:
    install("def main():\n    sys.exit('no device')\n")
    answer = python_facts.answer("serve-options")
    assert "value" not in answer
    assert answer["error"].startswith("RuntimeError: `vllm serve --help=all` ended with no device")


def test_a_vllm_that_does_not_load_cannot_be_asked(install: Install) -> None:
    install("import module_of_another_version\n")
    assert "No module named 'module_of_another_version'" in python_facts.answer("serve-options")["error"]
