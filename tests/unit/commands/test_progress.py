"""The log of commands that take a while."""

import pytest

from pipeline.commands.progress import TerminalLog


@pytest.mark.parametrize(("steps_only", "printed"), [(True, "a step\n"), (False, "a detail\na step\n")])
def test_details_are_left_out_where_only_steps_are_wanted(
    capsys: pytest.CaptureFixture[str], steps_only: bool, printed: str
) -> None:
    log = TerminalLog(steps_only=steps_only)
    log.line("a detail")
    log.step("a step")
    assert capsys.readouterr().err == printed
