"""forget and gc: what is removed, what stays, and what is said first."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.flow.looking_project import Looking, read_only
from tests.flow.project import ALL, ended, wait_for


@pytest.fixture
def project(tmp_path: Path) -> Looking:
    return Looking(tmp_path / "toy")


def old(project: Looking, count: int) -> None:
    """Make several results of other:x, the last of which is the newest."""
    for i in range(count):
        project.write("other.txt", f"content {i}")
        assert project.doit("other").code == 0
        newest = max(project.records("other:x"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, ns=(i * 10**9, i * 10**9))
    project.happened()


def kinds(answer: dict[str, list[dict[str, object]]]) -> dict[str, int]:
    """How many items of each kind."""
    found: dict[str, int] = {}
    for item in answer["items"]:
        found[str(item["kind"])] = found.get(str(item["kind"]), 0) + 1
    return found


def test_a_forgotten_task_runs_again_and_no_other(project: Looking) -> None:
    project.fresh()
    assert project.words("forget", "other") == "other:x: 1 result forgotten\n"
    assert project.words("forget", "other") == "other:x: no result to forget\n"
    project.doit()
    assert project.happened() == ["run other:x"]


def test_forget_all_forgets_all(project: Looking) -> None:
    project.fresh()
    assert {name: entry["records"] for name, entry in project.tasks("forget", "--all").items()} == dict.fromkeys(ALL, 1)
    assert "there is no result yet" in project.words("why", "first")
    project.doit()
    assert len(project.happened()) == 4


def test_forget_removes_damaged_records_too(project: Looking) -> None:
    project.fresh()
    project.records("other:x")[0].write_text("{")
    assert project.words("forget", "other") == "other:x: 1 result forgotten\n"
    assert project.records("other:x") == []


def test_forget_wants_tasks_or_all_and_not_both(project: Looking) -> None:
    project.fresh()
    for words in ((), ("other", "--all")):
        assert project.refusal("forget", *words, code=3).startswith("doit forget: name tasks, or say --all\n")
    assert len(project.records("other:x")) == 1


@pytest.mark.parametrize("words", [("forget", "other"), ("gc", "--yes", "--keep", "1")])
def test_in_a_checkout_that_cannot_be_written_nothing_is_removed_and_that_is_said(
    project: Looking, words: tuple[str, ...]
) -> None:
    old(project, 2)
    done = project.doit(*words, prefix=read_only(project))
    assert done.code == 4
    assert "cannot be written: Read-only file system" in done.err
    assert "Traceback" not in done.err
    assert len(project.records("other:x")) == 2


def test_gc_says_counts_and_bytes_and_removes_only_when_told(project: Looking) -> None:
    old(project, 6)
    before = project.snapshot()
    out = project.words("gc")
    assert "to remove:" in out
    assert "3  old records" in out
    assert "3  old logs" in out
    assert out.endswith("nothing was removed; --yes removes it\n")
    assert project.words("gc", "--dry-run") in out
    assert project.snapshot() == before
    answer = project.json("gc", "--dry-run")
    assert answer["bytes"] == sum(item["bytes"] for item in answer["items"])
    assert project.words("gc", "--yes").splitlines()[-1].startswith("removed 6 items, ")
    assert len(project.records("other:x")) == 3
    assert project.words("gc") == "nothing to remove\n"


def test_gc_keeps_the_newest_the_latest_and_what_fits_today_s_inputs(project: Looking) -> None:
    old(project, 6)
    project.write("other.txt", "content 0")
    fits_today = project.tasks("why", "other")["other:x"]["fingerprint"]
    newest = (project.root / "artifacts/records/other-x/latest").readlink().stem
    project.words("gc", "--keep", "1", "--yes")
    assert {path.stem for path in project.records("other:x")} == {newest, fits_today}


def test_gc_removes_artifacts_that_no_kept_record_claims_and_no_others(project: Looking) -> None:
    project.fresh()
    claimed = hashlib.sha256(b"other").hexdigest()
    assert project.tasks("status")["other:x"]["outputs"]["sha256"] == claimed
    mentioned = project.write(f"artifacts/wheels/{claimed}/layer.tar", "x" * 1000)
    unclaimed = project.write(f"artifacts/base/{'0' * 64}.tar", "x" * 5000)
    folder = project.write(f"artifacts/wheels/{'1' * 64}/layer.tar", "x" * 7000)
    answer = project.json("gc", "--yes")
    assert kinds(answer) == {"artifacts": 2}
    assert answer["bytes"] == 12000
    assert all(item["removed"] for item in answer["items"])
    assert mentioned.exists()
    assert not unclaimed.exists()
    assert not folder.parent.exists()
    assert project.doit().code == 0
    assert project.happened() == []


def test_gc_removes_what_killed_runs_and_damaged_records_left(project: Looking) -> None:
    project.fresh()
    project.write("artifacts/scratch/first-x/abc/part", "x")
    project.write("artifacts/aside/first-x-1.json", "{")
    project.write("artifacts/records/gone-x/1.json", "{}")
    answer = project.json("gc", "--yes")
    assert kinds(answer) == {
        "unfinished work": 1, "damaged records": 1, "results and logs of tasks that are no more": 1,
    }  # fmt: skip
    assert not (project.root / "artifacts/records/gone-x").exists()


def test_gc_leaves_all_alone_that_a_running_task_may_use(project: Looking) -> None:
    old(project, 6)
    unclaimed = project.write(f"artifacts/base/{'0' * 64}.tar", "x")
    project.write("other.txt", "new")
    process = project.start("other", env={"TOY_WAIT": "other:x=30"})
    wait_for(lambda: "waiting" in "".join(project.happened()))
    try:
        done = project.doit("gc", "--yes", "--keep", "1")
        assert done.code == 0
        assert done.out == "nothing to remove\n"
        assert f"note: other:x is running, in process {process.pid}\n" in done.err
        assert unclaimed.exists()
        assert len(project.records("other:x")) == 6
        assert list((project.root / "artifacts/scratch/other-x").iterdir())
    finally:
        project.write("go", "")
        assert ended(process).code == 0
    project.words("gc", "--yes", "--keep", "1")
    assert not unclaimed.exists()


def test_gc_without_an_engine_says_that_images_are_left_alone(project: Looking) -> None:
    project.fresh()
    done = project.doit("gc")
    assert (done.code, done.out) == (0, "nothing to remove\n")
    assert done.err.startswith("note: images are left alone: no Docker engine answers at local")


@pytest.mark.parametrize("words", [("--keep", "0"), ("--keep", "x"), ("--yes", "--dry-run"), ("other",)])
def test_a_wrong_gc_removes_nothing_and_exits_with_3(project: Looking, words: tuple[str, ...]) -> None:
    old(project, 5)
    before = project.snapshot()
    project.refusal("gc", *words, code=3)
    assert project.snapshot() == before
