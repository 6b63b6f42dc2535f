"""What changes while a run is under way: it is noticed, and nothing wrong is recorded."""

import fcntl
import json
import os
import sys
from pathlib import Path

import pytest

from tests.flow.looking_project import Looking
from tests.flow.project import ended, wait_for

WAITING = "waiting"


@pytest.fixture
def project(tmp_path: Path) -> Looking:
    made = Looking(tmp_path)
    made.fresh()
    return made


def waits(project: Looking) -> bool:
    """Whether a task that was told to wait has come to it."""
    file = project.root / "happened.txt"
    return file.exists() and WAITING in file.read_text().split("\n")


def go(project: Looking) -> None:
    project.write("go", "")


def test_an_upstream_s_file_that_changes_under_its_reader_is_named_and_nothing_is_recorded(project: Looking) -> None:
    project.params({"size": 1}, {"x": 2})
    records = project.records("second:x")
    done = project.doit("second", env={"TOY_EDIT": "second:x=artifacts/out/first:x.txt"})
    assert done.code == 1
    assert "artifacts/out/first:x.txt has other content, which is a result of first:x" in done.out
    assert project.records("second:x") == records
    assert project.doit("second").code == 0
    assert project.text("second:x") == "HELLO"


def test_a_run_that_waited_while_another_made_its_upstream_again_does_not_use_that(project: Looking) -> None:
    project.params({"size": 1}, {"x": 2})
    holder = project.start("second", env={"TOY_WAIT": "second:x=30"})
    wait_for(lambda: waits(project))
    waiting = project.start("second")
    logs = project.root / "artifacts/logs/second-x"
    wait_for(lambda: any("waiting: second:x is run by" in log.read_text() for log in logs.glob("*.log")))
    project.write("in.txt", "other words")
    assert project.doit("first").code == 0
    go(project)
    assert ended(holder).code == 1
    done = ended(waiting)
    assert done.code == 1
    assert "which is a result of first:x" in done.out
    project.write("in.txt", "hello")
    assert project.doit("second").code == 0
    assert project.text("second:x") == "HELLO"


def test_a_module_that_is_in_memory_and_edited_before_its_task_begins_is_named(project: Looking) -> None:
    project.write("pipeline/helper.py", "def mark():\n    return '!'\n")
    dodo = (project.root / "dodo.py").read_text()
    dodo = dodo.replace(
        "from pipeline.core import errors", "from pipeline import helper\nfrom pipeline.core import errors"
    )
    third = 'toy("third:x", Inputs(code=("pipeline.helper",)), lambda run: _text(run, "second:x") + helper.mark()'
    assert 'toy("third:x", Inputs(), lambda run: _text(run, "second:x") + "!"' in dodo
    project.write("dodo.py", dodo.replace('toy("third:x", Inputs(), lambda run: _text(run, "second:x") + "!"', third))
    project.params({"size": 1}, {"x": 2})
    run = project.start("third", env={"TOY_WAIT": "second:x=30"})
    wait_for(lambda: waits(project))
    project.write("pipeline/helper.py", "def mark():\n    return ' again'\n")
    go(project)
    done = ended(run)
    assert done.code == 1
    assert "pipeline.helper changed since this run began: third:x is not run" in done.out
    assert project.doit("third").code == 0
    assert project.text("third:x") == "HELLO again"


def test_a_tool_that_is_upgraded_during_a_run_is_named(project: Looking) -> None:
    dodo = (project.root / "dodo.py").read_text()
    asked = 'lambda: os.environ.get("TOY_TOOL", "clock 1")'
    assert asked in dodo
    project.write("tool", "clock 1")
    project.write("dodo.py", dodo.replace(asked, 'lambda: (ROOT / "tool").read_text()'))
    project.params({"size": 2})
    done = project.doit("first", env={"TOY_EDIT": "first:x=tool"})
    assert done.code == 1
    assert "clock changed while first:x ran: nothing is recorded" in done.out


def test_single_tasks_that_are_named_together_keep_their_order(project: Looking) -> None:
    project.write("in.txt", "newer")
    done = project.doit("-s", "third", "first", "second", env={"TOY_WAIT": "first:x=0.5"})
    assert done.code == 0
    assert [line for line in project.happened() if line.startswith("run")] == [
        "run first:x",
        "run second:x",
        "run third:x",
    ]
    assert project.text("third:x") == "NEWER!"


def test_a_look_does_not_wait_for_the_cache_of_stats(project: Looking) -> None:
    project.write("in.txt", "newer")
    with (project.root / "artifacts/cache/stats.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert project.doit("status", within=20).code == 0


@pytest.mark.parametrize("text", ['{"outputs": {}}', "[" * 200_000])
def test_a_record_that_its_task_cannot_read_is_named_set_aside_and_counts_as_absent(
    project: Looking, text: str
) -> None:
    (record,) = project.records("first:x")
    whole = json.loads(record.read_text())
    record.write_text(json.dumps(whole | json.loads(text)) if text.startswith("{") else text)
    done = project.doit("status")
    assert done.code == 0
    assert f"{record}: damaged record" in done.err
    done = project.doit("first")
    assert done.code == 0
    assert "is kept as" in done.out
    assert project.happened() == ["run first:x"]
    assert json.loads(record.read_text()) == whole


def test_logs_keep_their_order_whatever_the_time_zone(project: Looking) -> None:
    for zone in ("Asia/Tokyo", "UTC", "America/Lima"):
        assert (
            project.doit(
                "-a", "other", env={"TZ": zone, "TOY_PRINT": f"other:x={zone}", "TOY_CHATTER": "other:x=1"}
            ).code
            == 0
        )
    logs = sorted(path.name for path in (project.root / "artifacts/logs/other-x").glob("*.log"))
    assert (project.root / "artifacts/logs/other-x/latest").readlink().name == logs[-1]


def test_a_log_comes_after_one_from_the_future(project: Looking) -> None:
    folder = project.root / "artifacts/logs/other-x"
    newest = folder / (folder / "latest").readlink()
    newest.rename(folder / "20991231T235959.999999.log")
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("20991231T235959.999999.log")
    assert project.doit("-a", "other").code == 0
    assert (folder / "latest").readlink().name == "21000101T000000.000000.log"


def test_what_is_gone_of_two_lazy_tasks_is_made_side_by_side(project: Looking) -> None:
    lazy = {"TOY_LAZY": "second:x other:x"}
    dodo = (project.root / "dodo.py").read_text()
    third = 'toy("third:x", Inputs(params=params["second"]), lambda run: _text(run, "second:x"), "second:x", "other:x")'
    i = dodo.index('toy("third:x"')
    project.write("dodo.py", dodo[:i] + third + dodo[dodo.index(",\n", i) :])
    project.params({"size": 1}, {})
    assert project.doit("third", env=lazy).code == 0
    project.happened()
    for name in ("second:x", "other:x", "third:x"):
        (project.root / f"artifacts/out/{name}.txt").unlink()
    run = project.start("-n", "2", "third", env=lazy | {"TOY_WAIT": "second:x=30"})
    wait_for(lambda: "run other:x" in (project.root / "happened.txt").read_text() if waits(project) else False)
    go(project)
    assert ended(run).code == 0
    for name in ("second:x", "other:x", "third:x"):
        (project.root / f"artifacts/out/{name}.txt").unlink()
    assert project.doit("-n", "2", "third", env=lazy | {"TOY_FAIL": "second:x"}).code == 1
    ends = project.outcomes()
    assert (ends["second:x"], ends["other:x"], ends["third:x"]) == ("failed", "ran", "blocked")


def test_a_run_may_start_another_but_no_task_itself(project: Looking) -> None:
    other = f"{sys.executable} -m doit -a other"
    done = project.doit("-a", "first", env={"TOY_NEST": f"first:x={other}"})
    assert done.code == 0, done.out + done.err
    assert project.happened() == ["run first:x", "run other:x"]
    done = project.doit("-a", "other", env={"TOY_NEST": f"other:x={other}"}, within=30)
    assert done.code == 1
    assert "other:x is run by process" in done.out
    assert "hint: no task can run itself" in done.out


def test_another_way_to_spell_fingerprints_says_so_once(project: Looking) -> None:
    file = project.root / "pipeline/graph/fingerprint.py"
    file.write_text(file.read_text().replace("SCHEMA = 1\n", "SCHEMA = 2\n"))
    said = "this version of Tandem spells fingerprints differently"
    assert said in project.words("why", "first")
    done = project.doit()
    assert done.code == 0
    assert done.out.count(said) == 4
    assert said not in project.doit().out


def test_a_full_disk_is_a_failure_of_the_host_and_not_a_bug(project: Looking) -> None:
    done = project.doit("-a", "other", env={"TOY_FAIL": "other:x=full"})
    assert done.code == 4
    assert "artifacts/big: No space left on device" in done.out
    assert "Traceback" not in done.out + done.err


@pytest.mark.parametrize("command", ["status", "list", "help"])
@pytest.mark.parametrize(("to", "code"), [(">&-", 0), (">/dev/full", 4)])
def test_an_output_that_takes_nothing_is_no_bug(project: Looking, command: str, to: str, code: int) -> None:
    done = project.doit(command, prefix=("sh", "-c", f'exec "$@" {to}', "sh"))
    assert done.code == code
    assert done.err.splitlines()[:1] == ([] if code == 0 else ["No space left on device"])


def test_the_log_of_a_task_is_of_the_run_that_is_at_it_not_of_one_that_waits(project: Looking) -> None:
    holder = project.start("-a", "other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: waits(project))
    assert project.doit("-a", "other", env={"TANDEM_LOCK_TIMEOUT": "0.3"}).code == 5
    assert "waiting: " not in project.words("log", "other")
    assert "making other:x" in project.words("log", "other")
    go(project)
    assert ended(holder).code == 0
    assert "making other:x: done" in project.words("log", "other")


def test_gc_removes_what_a_killed_run_left_in_memory(project: Looking) -> None:
    namespace = str(Path("/proc/self/ns/pid").readlink()).removeprefix("pid:[").removesuffix("]")
    left = project.root / "memory" / f"tandem-{namespace}-{2**22 + os.getpid()}-1-test"
    left.mkdir(parents=True)
    found = {item["name"]: item["kind"] for item in project.json("gc", "--dry-run")["items"]}
    assert found[str(left)] == "unfinished work"
    assert project.doit("gc", "--yes").code == 0
    assert not left.exists()
