"""Kills, edits, damage and other runs: nothing half-done is ever taken for whole."""

import json
import random
import shutil
import signal
import subprocess  # one of its calls is made to last
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import procs
from pipeline.core.errors import Cancelled
from pipeline.core.log import NullLog
from tests.flow.project import ALL, Project, again_until_it_ends, ended, wait_for

SKIPPED = dict.fromkeys(ALL, "skipped")
KILLER = """
import os, signal
_count = 0
def _counted(real):
    def call(*args, **kwargs):
        global _count
        _count += 1
        if _count == {number}:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call
os.replace = _counted(os.replace)
os.rename = _counted(os.rename)
"""


def results(project: Project) -> dict[str, str]:
    """Every task's result and the digests in its newest record."""
    texts = {task: project.text(task) for task in ALL}
    for task in ALL:
        record = json.loads((project.root / "artifacts/records" / task.replace(":", "-") / "latest").read_text())
        texts[task + " record"] = json.dumps(record, sort_keys=True)
    return texts


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, str]:
    """What an undisturbed run comes to."""
    return results(Project(tmp_path / "undisturbed").fresh())


def test_an_input_edited_while_its_task_runs_fails_with_its_name_and_records_nothing(project: Project) -> None:
    done = project.doit("first", env={"TOY_EDIT": "first:x=in.txt"})
    assert done.code == 1
    assert "in.txt changed while first:x ran" in done.out
    assert project.records("first:x") == []
    project.happened()
    assert project.doit("first").code == 0
    assert project.happened() == ["run first:x"]


def test_a_file_added_or_code_edited_while_a_task_runs_is_caught_too(project: Project) -> None:
    assert "src/new.txt changed" in project.doit("first", env={"TOY_EDIT": "first:x=src/new.txt"}).out
    project.write("pipeline/toy.py", "def shout(text):\n    return text\n")
    assert "changed while first:x ran" in project.doit("first", env={"TOY_EDIT": "first:x=shared.txt"}).out
    assert project.records("first:x") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_programs_runs_the_clean_up_and_exits_with_130(project: Project, number: int) -> None:
    process = project.start(env={"TOY_PROGRAM": "second:x=100"})
    wait_for(lambda: (project.root / "happened.txt").exists() and "run second:x" in happened(project))
    time.sleep(0.3)
    process.send_signal(number)
    done = ended(process, within=20)
    assert done.code == 130
    assert "cleaned up" in project.happened()
    assert project.records("second:x") == []
    assert project.outcomes()["second:x"] == "failed"
    assert project.report()["exit"] == 130
    assert not list((project.root / "artifacts/scratch/second-x").glob("*"))
    # Finished tasks stay finished, the running one is done again.
    assert project.doit().code == 0
    assert project.happened()[0] == "run second:x"


def test_an_interrupt_ends_parallel_tasks_too(project: Project) -> None:
    process = project.start("-n", "4", env={"TOY_PROGRAM": "first:x=100", "TOY_WAIT": "other:x=100"})
    wait_for(lambda: {"waiting", "run first:x"} <= set(happened(project).split("\n")))
    process.send_signal(signal.SIGINT)
    assert ended(process, within=10).code == 130
    assert project.outcomes() == {"first:x": "failed", "other:x": "failed"}
    assert "cleaned up" in project.happened()


def test_a_program_that_is_being_started_when_the_run_is_interrupted_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            procs.cancel()

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    start = time.monotonic()
    try:
        with pytest.raises(Cancelled):
            procs.run(["sleep", "300"], log=NullLog())
    finally:
        procs.resume()
    assert time.monotonic() - start < 150


def test_a_long_wait_of_a_stage_ends_when_the_run_is_interrupted(project: Project) -> None:
    process = project.start("other", env={"TOY_WAIT": "other:x=100"})
    wait_for(lambda: "waiting" in happened(project))
    process.terminate()
    assert ended(process, within=10).code == 130


def test_a_second_signal_leaves_at_once(project: Project) -> None:
    process = project.start("other", env={"TOY_SLOW": "300"})
    wait_for(lambda: "run other:x" in happened(project))
    process.terminate()
    time.sleep(0.3)
    assert process.poll() is None
    again_until_it_ends(process)
    assert ended(process).code == 130


def test_a_kill_loses_the_running_task_only(project: Project) -> None:
    process = project.start(env={"TOY_WAIT": "third:x=100"})
    wait_for(lambda: "waiting" in happened(project))
    process.kill()
    ended(process)
    project.happened()
    project.doit()
    assert project.happened() == ["run third:x"]


def test_a_program_that_outlives_its_killed_run_holds_no_lock(project: Project) -> None:
    process = project.start("other", env={"TOY_PROGRAM": "other:x=6"})
    wait_for(lambda: "run other:x" in happened(project))
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert project.doit("other", env={"TANDEM_LOCK_TIMEOUT": "1"}).code == 0


def test_a_hundred_kills_at_random_moments_always_come_to_the_same_result(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    projects = [Project(tmp_path / str(i)) for i in range(4)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda project: kill_often(project, 25, expected), projects))
    for project in projects:
        assert project.doit().code == 0
        assert project.outcomes() == SKIPPED


def kill_often(project: Project, times: int, expected: dict[str, str]) -> None:
    """Kill `times` runs before their end, at random moments, and run to the end now and then."""
    moments = random.Random(project.root.name)
    killed = 0
    for _ in range(times * 20):
        if moments.random() < 0.6:
            shutil.rmtree(project.root / "artifacts/records", ignore_errors=True)
        process = project.start("-n", "4", env={"TOY_SLOW": "0.01"})
        process.stdout.readline()
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        killed += ended(process).code == -signal.SIGKILL
        if moments.random() < 0.15:
            assert project.doit().code == 0
            assert results(project) == expected
        if killed == times:
            break
    assert killed == times
    assert project.doit().code == 0
    assert results(project) == expected


def test_a_kill_before_any_rename_comes_to_the_same_result(
    project: Project, expected: dict[str, str], tmp_path: Path
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for number in range(1, 100):
        shutil.rmtree(project.root / "artifacts", ignore_errors=True)
        (hooks / "sitecustomize.py").write_text(KILLER.format(number=number))
        done = project.doit("-n", "1", env={"PYTHONPATH": str(hooks), "PYTHONDONTWRITEBYTECODE": "1"})
        if done.code == 0:
            break
        assert done.code == -signal.SIGKILL, done.out + done.err
        assert project.doit().code == 0
        assert results(project) == expected
    else:
        raise AssertionError("it never ends")
    assert number > 15, "a run renames more often than that"


def test_two_runs_at_once_do_each_task_once_and_the_other_waits_saying_for_whom(project: Project) -> None:
    first = project.start("other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: "waiting" in happened(project))
    second = project.start("other")
    logs, said = project.root / "artifacts/logs/other-x", f"waiting: other:x is run by process {first.pid}, since 20"
    wait_for(lambda: any(said in log.read_text() for log in logs.glob("*.log")))
    project.write("go", "")
    assert ended(first).code == 0
    assert ended(second).code == 0
    assert project.happened() == ["run other:x", "waiting"]


def test_a_run_that_waited_too_long_says_so_and_exits_with_5(project: Project) -> None:
    first = project.start("other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: "waiting" in happened(project))
    done = project.doit("other", env={"TANDEM_LOCK_TIMEOUT": "0.3"})
    assert done.code == 5
    assert f"other:x is still run by process {first.pid}" in done.out
    assert "TANDEM_LOCK_TIMEOUT" in done.out
    project.write("go", "")
    assert ended(first).code == 0


def test_of_two_runs_whose_lock_was_removed_one_counts(project: Project) -> None:
    first = project.start("other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: "waiting" in happened(project))
    shutil.rmtree(project.root / "artifacts" / "locks")
    second = project.start("other", env={"TOY_NEST": "other:x=sleep 3"})
    wait_for(lambda: happened(project).count("run other:x") == 2)
    project.write("go", "")
    done = ended(first)
    assert done.code == 5, done.out
    assert f"other:x is run by process {second.pid}, since 20" in done.out
    assert "other-x.lock was removed while this run held it" in done.out
    assert ended(second).code == 0
    assert len(project.records("other:x")) == 1


def test_a_lock_that_was_removed_is_taken_again(project: Project) -> None:
    first = project.start("other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: "waiting" in happened(project))
    shutil.rmtree(project.root / "artifacts" / "locks")
    project.write("go", "")
    assert ended(first).code == 0
    assert len(project.records("other:x")) == 1


def test_a_task_whose_artifacts_are_removed_says_so(project: Project) -> None:
    first = project.start("other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: "waiting" in happened(project))
    shutil.rmtree(project.root / "artifacts")
    project.write("go", "")
    done = ended(first)
    assert done.code == 1, done.out
    assert "was removed while other:x ran: nothing is recorded" in done.out
    assert "Traceback" not in done.out + done.err
    assert project.doit("other").code == 0


def test_runs_of_different_tasks_do_not_wait_for_each_other(project: Project) -> None:
    first = project.start("other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: "waiting" in happened(project))
    assert project.doit("first").code == 0
    assert project.doit("list", "--all").code == 0
    project.write("go", "")
    assert ended(first).code == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "\0" * len(text),
        lambda text: "[]",
        lambda text: text.replace('"schema": 1', '"schema": 99'),
        lambda text: text.replace('"task": "other:x"', '"task": "first:x"'),
    ],
    ids=["truncated", "empty", "zeros", "foreign", "newer schema", "of another task"],
)
def test_a_damaged_record_is_named_set_aside_and_counts_as_absent(project: Project, damage: object) -> None:
    project.fresh()
    record = project.records("other:x")[0]
    assert callable(damage)
    record.write_text(damage(record.read_text()))
    done = project.doit()
    assert done.code == 0
    assert str(record) in done.out
    assert "damaged record" in done.out
    assert project.happened() == ["run other:x"]
    assert len(list((project.root / "artifacts/aside").iterdir())) == 1
    assert project.doit().code == 0
    assert project.happened() == []


def test_a_damaged_cache_of_stats_only_costs_time(project: Project) -> None:
    project.fresh()
    for text in ("{", "[]", '{"schema": 1, "known": {"sha256 x": 1}}', '{"schema": 1, "known": []}'):
        project.write("artifacts/cache/stats.json", text)
        assert project.doit().code == 0
        assert project.happened() == []


def test_a_checkout_that_cannot_be_written_says_so(project: Project) -> None:
    prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    for path in [project.root, *project.root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = project.doit(prefix=prefix)
    assert done.code == 4
    assert "cannot be written: Permission denied" in done.out
    assert "artifacts" in done.out
    assert "Traceback" not in done.out + done.err


def test_a_checkout_that_cannot_be_written_can_still_be_up_to_date(project: Project) -> None:
    project.fresh()
    (project.root / "artifacts/report.json").unlink()
    for path in [project.root, *project.root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else path.stat().st_mode & 0o555)
    done = project.doit(prefix=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    assert done.code == 0, done.out
    assert "no report" in done.out


def test_a_full_disk_is_a_failure_in_words(project: Project) -> None:
    project.fresh()
    done = project.doit("-a", "other", env={"TOY_CHATTER": "other:x=3000"}, prefix=("prlimit", "--fsize=20000"))
    assert done.code == 4
    assert "cannot be written: File too large" in done.out
    assert "Traceback" not in done.out + done.err
    assert project.doit().code == 0


def test_who_stops_reading_what_we_say_does_not_stop_what_we_do(project: Project) -> None:
    process = project.start("-v", "2", env={"TOY_CHATTER": "first:x=2000"})
    process.stdout.readline()
    process.stdout.close()
    process.wait(30)
    assert process.returncode == 0
    assert process.stderr.read() == ""
    assert project.report()["exit"] == 0


def test_being_told_to_end_while_dodo_py_is_read_exits_with_130(project: Project) -> None:
    dodo = project.root / "dodo.py"
    dodo.write_text("import pathlib, time\npathlib.Path('happened.txt').write_text('x')\ntime.sleep(30)\n")
    process = project.start()
    wait_for(lambda: happened(project) == "x")
    process.terminate()
    done = ended(process, within=5)
    assert (done.code, done.err) == (130, "interrupted\n")


def test_a_task_that_was_asked_to_run_again_runs_each_time(project: Project) -> None:
    dodo = project.root / "dodo.py"
    dodo.write_text(
        dodo.read_text().replace(
            'Claim(kind="lamp", what={"name": name})', 'Claim(kind="never", what={"why": "asked"})'
        )
    )
    project.fresh()
    assert project.doit("other").code == 0
    assert project.happened() == ["run other:x"]


def happened(project: Project) -> str:
    """What the tasks did so far."""
    file = project.root / "happened.txt"
    return file.read_text() if file.exists() else ""
