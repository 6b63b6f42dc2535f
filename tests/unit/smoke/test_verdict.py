"""How a crash of the emulator is told from a fault of the image."""

from pipeline.smoke.verdict import describe_exit, emulator_crashed


def test_a_crashed_emulator_is_recognised_by_its_statuses_and_words() -> None:
    assert [status for status in range(256) if emulator_crashed(status, "", emulated=True)] == [132, 134, 139]
    assert not emulator_crashed(None, "Killed", emulated=True)
    for emulated in (True, False):
        words = "qemu: uncaught target signal 11 (Segmentation fault) - core dumped"
        assert emulator_crashed(0, words, emulated=emulated)


def test_without_an_emulator_no_status_is_its_crash() -> None:
    assert not [status for status in range(-64, 256) if emulator_crashed(status, "", emulated=False)]


def test_an_exit_is_described_by_status_or_signal() -> None:
    assert [describe_exit(status) for status in (7, 139, 255, None)] == [
        "exit status 7",
        "signal 11 (SIGSEGV)",
        "exit status 255",
        "a time-out",
    ]
