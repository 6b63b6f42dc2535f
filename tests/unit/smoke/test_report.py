"""From verdicts to a report, a table and an error."""

import pytest

from pipeline.core.log import NullLog
from pipeline.smoke.report import Smoked, SmokeError, conclude
from pipeline.smoke.verdict import CheckOutcome, Verdict, crash_verdict, verdict_of

SUBJECT = {"image": "x", "reference": "sha256:0", "platform": "linux/arm64"}
GOOD = verdict_of("versions", [], "2 locked")
BAD = verdict_of("launcher", ["no bash", "no git"], "", {"3": ["no bash"], "6": ["no git"]})
CRASHED = crash_verdict("ray", "`ray status`", 3)


def failure(*verdicts: Verdict) -> SmokeError:
    with pytest.raises(SmokeError) as caught:
        conclude("smoke:x", SUBJECT, verdicts, NullLog())
    return caught.value


def test_an_image_that_passes_every_check_is_proven_by_its_report() -> None:
    log = NullLog()
    checks = {"versions": {"outcome": "ok", "details": ["2 locked"]}}
    assert conclude("smoke:x", SUBJECT, [GOOD], log) == Smoked("sha256:0", {**SUBJECT, "checks": checks})
    assert any("│ versions │ ok" in line and "2 locked" in line for line in log.lines)


def test_every_fault_is_in_the_message_and_every_verdict_in_the_report() -> None:
    error = failure(GOOD, BAD, CRASHED)
    assert str(error).splitlines() == [
        "smoke:x: 2 of 3 checks did not pass: launcher, ray",
        "  launcher (failed): no bash",
        "  launcher (failed): no git",
        f"  ray (emulator): {CRASHED.details[0]}",
    ]
    assert error.hint == ""
    assert {name: check["outcome"] for name, check in error.report["checks"].items()} == {
        "versions": "ok",
        "launcher": "failed",
        "ray": "emulator",
    }
    assert error.report["checks"]["launcher"]["points"] == {"3": ["no bash"], "6": ["no git"]}


def test_only_crashes_of_the_emulator_are_worth_another_run() -> None:
    assert CRASHED.outcome is CheckOutcome.EMULATOR
    assert "run it again" in failure(GOOD, CRASHED).hint
