"""What runs again, and what does not."""

import os
import time

from tests.flow.project import ALL, Project, ended, wait_for

SKIPPED = dict.fromkeys(ALL, "skipped")


def test_the_first_run_does_everything_and_the_second_nothing(project: Project) -> None:
    assert project.doit().code == 0
    assert sorted(project.happened()) == sorted(f"run {task}" for task in ALL)
    assert project.doit().code == 0
    assert project.happened() == []
    assert project.outcomes() == SKIPPED


def test_same_mtime_and_same_size_with_other_content_runs_again(project: Project) -> None:
    path = project.write("in.txt", "hello")
    os.utime(path, (0, 0))
    project.fresh()
    path.write_text("jello")
    os.utime(path, (0, 0))
    project.doit()
    assert "run first:x" in project.happened()
    assert project.text("first:x").startswith("JELLO")


def test_same_mtime_and_other_size_runs_again(project: Project) -> None:
    path = project.write("in.txt", "hello")
    os.utime(path, (0, 0))
    project.fresh()
    path.write_text("hello there")
    os.utime(path, (0, 0))
    project.doit()
    assert "run first:x" in project.happened()


def test_a_touched_file_does_not_run_anything(project: Project) -> None:
    project.fresh()
    os.utime(project.root / "in.txt")
    project.doit()
    assert project.happened() == []


def test_chmod_x_runs_again_and_a_different_umask_does_not(project: Project) -> None:
    project.fresh()
    path = project.root / "in.txt"
    path.chmod(0o664)
    project.doit()
    assert project.happened() == []
    path.chmod(0o755)
    project.doit()
    assert "run first:x" in project.happened()


def test_an_edited_parameter_runs_only_the_task_that_reads_it(project: Project) -> None:
    project.fresh()
    project.params({"size": 1}, {"colour": "red"})
    project.doit()
    assert project.happened() == ["run second:x"]


def test_edited_stage_code_runs_again_and_an_edited_comment_does_not(project: Project) -> None:
    project.fresh()
    stage = project.root / "pipeline" / "toy.py"
    stage.write_text(stage.read_text().replace("# a comment", "# another comment").replace("loudly", "very loudly"))
    project.doit()
    assert project.happened() == []
    stage.write_text(stage.read_text().replace("upper", "title"))
    project.doit()
    assert "run first:x" in project.happened()
    assert project.text("first:x").startswith("Hello")


def test_code_that_the_stage_imports_counts_too(project: Project) -> None:
    project.write("pipeline/helper.py", "MARK = '?'\n")
    project.write(
        "pipeline/toy.py",
        "def shout(text):\n    from pipeline.helper import MARK\n    return text + MARK\n",
    )
    project.fresh()
    # Another size: for Python's own bytecode cache a file of the same second and size is the same file.
    project.write("pipeline/helper.py", "MARK = '!!'\n")
    project.doit()
    assert project.text("first:x").startswith("hello!!")


def test_a_tampered_output_is_made_good_again(project: Project) -> None:
    project.fresh()
    good = project.text("second:x")
    (project.root / "artifacts/out/second:x.txt").write_text("tampered")
    project.doit()
    assert project.happened() == ["run second:x"]
    assert project.text("second:x") == good


def test_a_deleted_output_is_restored_from_the_store_without_the_work(project: Project) -> None:
    project.fresh()
    good = project.text("first:x")
    (project.root / "artifacts/out/first:x.txt").unlink()
    project.doit()
    assert project.happened() == ["restore first:x"]
    assert project.text("first:x") == good
    assert project.outcomes() == {**SKIPPED, "first:x": "restored"}


def test_a_deleted_blob_behind_a_kept_record_is_made_again(project: Project) -> None:
    project.fresh()
    (project.root / "artifacts/out/first:x.txt").unlink()
    for blob in (project.root / "artifacts/store").iterdir():
        blob.unlink()
    project.doit()
    assert project.happened() == ["run first:x"]
    assert project.doit().code == 0
    assert project.happened() == []


def test_a_world_that_lost_something_runs_exactly_the_task_that_made_it(project: Project) -> None:
    project.fresh()
    off = project.write("lamp-off-third:x", "")
    process = project.start(env={"TOY_WAIT": "third:x=20"})
    wait_for(lambda: (project.root / "happened.txt").exists())
    off.unlink()
    project.write("go", "")
    assert ended(process).code == 0
    assert project.happened() == ["run third:x", "waiting"]


def test_going_back_to_earlier_inputs_costs_no_work(project: Project) -> None:
    project.fresh()
    project.write("in.txt", "other words")
    project.doit()
    assert "run first:x" in project.happened()
    project.write("in.txt", "hello")
    project.doit()
    assert project.happened()[0] == "restore first:x"
    assert "run first:x" not in project.happened()
    assert project.text("first:x").startswith("HELLO")
    assert project.text("third:x") == "HELLO!"


def test_the_same_output_from_other_inputs_stops_there(project: Project) -> None:
    project.fresh()
    project.write("src/b.txt", "changes the first text, not its first line")
    project.doit()
    assert project.happened() == ["run first:x", "run second:x"]
    assert project.outcomes() == {"first:x": "ran", "second:x": "ran", "third:x": "skipped", "other:x": "skipped"}


def test_another_tool_runs_again_what_names_it(project: Project) -> None:
    project.fresh()
    project.doit(env={"TOY_TOOL": "clock 2"})
    assert project.happened() == ["run first:x"]


def test_an_unrelated_file_changes_nothing(project: Project) -> None:
    project.fresh()
    project.write("unrelated.txt", "x")
    project.write("src/__pycache__/x.pyc", "x")
    project.doit()
    assert project.happened() == []


def test_a_file_added_to_a_pattern_or_removed_from_it_runs_again(project: Project) -> None:
    project.fresh()
    added = project.write("src/deep/b.txt", "")
    project.doit()
    assert "run first:x" in project.happened()
    added.unlink()
    project.doit()
    assert "restore first:x" in project.happened()


def test_a_removed_input_is_not_served_from_the_cache(project: Project) -> None:
    project.fresh()
    (project.root / "other.txt").unlink()
    done = project.doit("other")
    assert done.code == 2
    assert "other.txt" in done.out


def test_an_empty_input_is_not_a_missing_one(project: Project) -> None:
    project.write("shared.txt", "")
    project.fresh()
    (project.root / "shared.txt").unlink()
    project.doit()
    assert "run first:x" in project.happened()


def test_names_with_spaces_and_unicode_count_like_others(project: Project) -> None:
    name = "src/a b/naïve – 測試\n.txt"
    project.write(name, "x")
    bad = os.fsencode(project.root) + b"/src/not-utf8-\xff"
    with open(bad, "w") as file:  # noqa: PTH123  # a name that is not text
        file.write("x")
    project.fresh()
    assert project.doit().code == 0
    assert project.happened() == []
    project.write(name, "y")
    project.doit()
    assert "run first:x" in project.happened()
    with open(bad, "w") as file:  # noqa: PTH123
        file.write("y")
    project.doit()
    assert "run first:x" in project.happened()


def test_a_clock_that_was_set_back_hides_no_change(project: Project) -> None:
    later = time.time() + 10_000_000
    path = project.write("in.txt", "hello")
    os.utime(path, (later, later))
    project.fresh()
    path.write_text("jello")
    os.utime(path, (later - 20_000_000, later - 20_000_000))
    project.doit()
    assert "run first:x" in project.happened()
    project.doit()
    assert project.happened() == []


def test_a_file_written_and_a_run_in_the_same_moment_are_told_apart(project: Project) -> None:
    path = project.write("other.txt", "00")
    for i in range(1, 9):
        before = path.stat()
        path.write_text(f"0{i}")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert project.doit("other").code == 0
        assert project.text("other:x") == f"0{i}"


def test_one_of_ten_thousand_input_files_decides(project: Project) -> None:
    folder = project.root / "src"
    for i in range(100):
        (folder / str(i)).mkdir()
        for j in range(100):
            (folder / str(i) / f"{j}.txt").write_text(f"{i} {j}")
    project.fresh()
    project.doit()
    assert project.happened() == []
    (folder / "50" / "50.txt").write_text("changed")
    project.doit()
    assert "run first:x" in project.happened()


def test_a_forced_run_replaces_a_result_that_is_there(project: Project) -> None:
    project.fresh()
    assert project.doit("-a", "other").code == 0
    assert project.happened() == ["run other:x"]


def test_a_single_task_takes_what_its_upstream_came_to_last(project: Project) -> None:
    project.fresh()
    project.write("in.txt", "new words")
    assert project.doit("-s", "second:x").code == 0
    assert project.happened() == []
    assert project.doit("-s", "second:x", "-a").code == 0
    assert project.happened() == ["run second:x"]


def test_a_single_task_without_its_upstream_says_what_is_missing(project: Project) -> None:
    done = project.doit("-s", "second:x")
    assert done.code == 1
    assert "second:x needs first:x, which has no result yet" in done.out


def test_the_records_hold_no_time_and_no_place(project: Project) -> None:
    project.fresh()
    text = project.records("first:x")[0].read_text()
    assert str(project.root) not in text
    for word in ("time", "date", "started", "seconds"):
        assert word not in text


def test_two_checkouts_in_different_places_come_to_the_same_fingerprints(project: Project, tmp_path: object) -> None:
    project.fresh()
    other = Project(project.root.parent / "elsewhere with spaces").fresh()
    for task in ALL:
        assert [path.name for path in project.records(task)] == [path.name for path in other.records(task)]
