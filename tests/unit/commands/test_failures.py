"""How a command of ours ends, whatever happens in it."""

import os
import signal
import sys
import threading

import pytest

from pipeline.commands.failures import exit_code_of
from pipeline.core import redact
from pipeline.core.errors import ConfigError, Exit, HostError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_ctrl_c_does_after_it_has_tidied_up(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    tidied = []

    def act() -> int:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            tidied.append(number)
        return 0

    try:
        assert exit_code_of(act) == Exit.INTERRUPTED
        assert tidied == [number]
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def act() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 7

    try:
        assert exit_code_of(act) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_may_run_in_any_thread() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(exit_code_of(lambda: 0)))
    thread.start()
    thread.join()
    assert codes == [0]


@pytest.mark.parametrize(("error", "code"), [(ConfigError("x", hint="y"), 3), (HostError("x", hint="y"), 4)])
def test_an_expected_failure_is_a_message_and_a_hint(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> int:
        raise error

    assert exit_code_of(act) == code
    assert capsys.readouterr().err == "x\nhint: y\n"


def test_a_bug_is_told_from_an_expected_failure_with_all_that_is_known_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def act() -> int:
        raise LookupError("nobody expected this")

    assert exit_code_of(act) == Exit.BUG
    said = capsys.readouterr().err
    assert said.startswith("this is a bug:\nTraceback")
    assert "LookupError: nobody expected this" in said


def test_no_command_prints_a_secret_whatever_way_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    redact.register("s3cr3t-canary")

    def act() -> int:
        print("out s3cr3t-canary")
        sys.stderr.write("err s3cr3t-canary\n")
        raise ValueError("bug s3cr3t-canary")

    streams = sys.stdout, sys.stderr
    assert exit_code_of(lambda: exit_code_of(act)) == Exit.BUG
    assert (sys.stdout, sys.stderr) == streams
    out, err = capsys.readouterr()
    assert out == "out ***\n"
    assert err.startswith("err ***\n")
    assert err.endswith("ValueError: bug ***\n")
    assert "s3cr3t-canary" not in err
