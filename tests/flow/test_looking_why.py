"""why, status, plan: what would happen, and why, without anything happening."""

import re
import sys
from pathlib import Path

import pytest

from tests.flow.looking_project import Looking, read_only
from tests.flow.project import ALL, ended, wait_for

COMMANDS = [
    ("why",),
    ("why", "third"),
    ("status",),
    ("plan", "third"),
    ("graph",),
    ("log", "first"),
    ("gc", "--dry-run"),
]


@pytest.fixture
def project(tmp_path: Path) -> Looking:
    return Looking(tmp_path / "toy")


def test_why_names_the_input_with_its_old_and_its_new_value(project: Looking) -> None:
    project.fresh()
    project.params({"size": 2})
    project.write("in.txt", "other")
    reasons = {entry["input"]: entry for entry in project.tasks("why", "first")["first:x"]["reasons"]}
    assert set(reasons) == {"param:size", "file:in.txt"}
    assert (reasons["param:size"]["old"], reasons["param:size"]["new"]) == ("1", "2")
    out = project.words("why", "first")
    assert out.startswith("first:x would run:\n")
    assert re.search(r"^  param:size +1 → 2$", out, re.MULTILINE)
    assert re.search(r"^  file:in.txt +644 [0-9a-f]{12}… → 644 [0-9a-f]{12}…$", out, re.MULTILINE)


def test_why_says_what_is_new_and_what_is_gone(project: Looking) -> None:
    project.write("src/old.txt", "old")
    project.fresh()
    (project.root / "src/old.txt").unlink()
    project.write("src/new.txt", "new")
    out = project.words("why", "first")
    assert re.search(r"file:src/old.txt +644 \S+ → gone$", out, re.MULTILINE)
    assert re.search(r"file:src/new.txt +not there → 644 ", out)


def test_why_says_for_a_skip_what_was_compared_and_what_the_world_was_asked(project: Looking) -> None:
    project.fresh()
    entry = project.tasks("why", "first")["first:x"]
    assert entry["state"] == "skip"
    assert entry["reasons"] == []
    assert {"file:in.txt", "param:size", "tool:clock", "code:pipeline.toy"} <= set(entry["inputs"])
    assert [(claim["kind"], claim["broken"]) for claim in entry["claims"]] == [("file", None), ("lamp", None)]
    out = project.words("why", "first")
    assert "first:x is up to date\n" in out
    assert "3 files, 1 parameter, " in out
    assert "the world holds: lamp name=first:x\n" in out


def test_why_names_the_claim_that_the_world_no_longer_holds(project: Looking) -> None:
    project.fresh()
    project.write("lamp-off-second:x", "")
    entry = project.tasks("why", "second")["second:x"]
    assert entry["state"] == "run"
    assert [claim["broken"] for claim in entry["claims"]] == [None, "the lamp is off"]
    assert "→ the lamp is off\n" in project.words("why", "second")


def test_why_shows_what_is_upstream_if_it_is_not_up_to_date(project: Looking) -> None:
    project.fresh()
    project.write("in.txt", "hello\nmore")
    tasks = project.tasks("why", "third")
    assert {name: entry["asked"] for name, entry in tasks.items()} == {
        "third:x": True, "first:x": False, "second:x": False,
    }  # fmt: skip
    assert tasks["third:x"]["state"] == "depends"
    assert next(iter(tasks)) == "third:x"


def test_before_the_first_run_there_is_no_result_and_nothing_else_to_say(project: Looking) -> None:
    assert project.words("why", "other") == "other:x would run:\n  record  there is no result yet\n"


def test_status_is_one_table_with_state_digest_age_and_duration(project: Looking) -> None:
    project.fresh()
    project.write("other.txt", "changed")
    lines = project.words("status").splitlines()
    assert lines[0].split() == ["TASK", "STATE", "DIGEST", "AGE", "TOOK"]
    assert re.fullmatch(r"first:x +up to date +[0-9a-f]{12} +\d+ s +\d+\.\d s", lines[1])
    assert re.fullmatch(r"other:x +to run +[0-9a-f]{12} +\d+ s +\d+\.\d s", lines[4])
    entry = project.tasks("status")["first:x"]
    assert entry["digest"] == next(e["digest"] for e in project.report()["tasks"] if e["task"] == "first:x")
    assert entry["outputs"]["path"] == "artifacts/out/first:x.txt"
    assert list(project.tasks("status", "other")) == ["other:x"]


def test_plan_says_run_skip_restore_or_on_what_it_depends(project: Looking) -> None:
    project.fresh()
    (project.root / "artifacts/out/first:x.txt").unlink()
    assert [entry["action"] for entry in project.tasks("plan", "third").values()] == ["restore", "skip", "skip"]
    project.write("in.txt", "changed")
    plan = project.json("plan", "third")
    assert [(e["task"], e["action"], e["on"]) for e in plan["tasks"]] == [
        ("first:x", "run", []), ("second:x", "depends", ["first:x"]), ("third:x", "depends", ["second:x"]),
    ]  # fmt: skip
    assert plan["seconds"] == pytest.approx(plan["tasks"][0]["usual_seconds"], abs=0.001)
    out = project.words("plan", "third")
    assert re.search(r"^ 1  first:x +run +usually \d+\.\d s +file:in\.txt", out, re.MULTILINE)
    assert re.search(r"^ 2  second:x +depends on first:x", out, re.MULTILINE)


def test_what_plan_says_is_what_run_does(project: Looking) -> None:
    project.fresh()
    project.write("other.txt", "changed")
    actions = {"skip": "skipped", "run": "ran"}
    planned = {name: actions[entry["action"]] for name, entry in project.tasks("plan").items()}
    project.doit()
    assert project.outcomes() == planned
    assert project.words("plan").endswith("nothing to do\n")


def test_the_usual_duration_is_the_median_of_the_last_runs(project: Looking) -> None:
    project.fresh()
    seconds = [9.0, 1.0, 2.0]
    times = ", ".join(f'{{"fingerprint": "x", "started": 1, "seconds": {value}}}' for value in seconds)
    project.write("artifacts/times/other-x.json", f"[{times}]")
    assert project.tasks("plan", "other")["other:x"]["usual_seconds"] == 2.0


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_looking_command_changes_nothing(project: Looking, command: tuple[str, ...]) -> None:
    project.fresh()
    project.write("in.txt", "changed")
    before = project.snapshot()
    project.words(*command)
    project.doit(*command, "--json")
    assert project.snapshot() == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_looking_command_works_in_a_checkout_that_cannot_be_written(
    project: Looking, command: tuple[str, ...]
) -> None:
    project.fresh()
    project.write("in.txt", "changed")
    done = project.doit(*command, prefix=read_only(project))
    assert done.code == 0, done.err
    assert done.out
    assert "rror" not in done.err


def test_a_running_task_is_shown_and_not_waited_for(project: Looking) -> None:
    process = project.start(env={"TOY_WAIT": "first:x=30"})
    wait_for(lambda: "waiting" in "".join(project.happened()))
    try:
        entry = project.tasks("status")["first:x"]
        assert entry["running"]["pid"] == process.pid
        assert f"running (process {process.pid})" in project.words("status")
        assert f"it is running now, in process {process.pid}" in project.words("why", "first")
        assert f"running in process {process.pid}" in project.words("plan", "first")
    finally:
        project.write("go", "")
        assert ended(process).code == 0
    assert project.tasks("status")["first:x"]["running"] is None


def test_a_task_whose_run_was_killed_is_not_shown_as_running(project: Looking) -> None:
    process = project.start(env={"TOY_WAIT": "first:x=30"})
    wait_for(lambda: "waiting" in "".join(project.happened()))
    process.kill()
    ended(process)
    assert (project.root / "artifacts/locks/first-x.lock").read_text()
    assert project.tasks("status")["first:x"]["running"] is None


def test_a_damaged_record_is_named_and_left_where_it_is(project: Looking) -> None:
    project.fresh()
    record = project.records("other:x")[0]
    record.write_text("{")
    done = project.doit("why", "other", "--json")
    assert done.code == 0
    assert f"note: {record}: damaged record" in done.err
    assert record.read_text() == "{"


def test_options_may_stand_after_the_task(project: Looking) -> None:
    project.fresh()
    assert project.doit("why", "first", "--json").out == project.doit("why", "--json", "first").out


def test_a_bare_kind_and_a_pattern_mean_tasks(project: Looking) -> None:
    assert list(project.tasks("status", "other")) == ["other:x"]
    assert set(project.tasks("status", "*:x")) == set(ALL)
    assert list(project.tasks("status", "s*:x", "other:x")) == ["second:x", "other:x"]


@pytest.mark.parametrize("command", ["why", "status", "plan", "graph", "log", "forget"])
def test_an_unknown_task_is_one_message_with_the_nearest_name(project: Looking, command: str) -> None:
    assert project.refusal(command, "secnd", code=3) == "'secnd' is not a task\nhint: did you mean 'second'?\n"
    assert project.refusal(command, "secnd:*", code=3).startswith("no task is called like 'secnd:*'\n")


def test_a_mistyped_command_gets_the_nearest_name(project: Looking) -> None:
    assert project.refusal("statsu", code=3) == "'statsu' is not a task\nhint: did you mean 'status'?\n"


@pytest.mark.parametrize("command", ["why", "status", "plan", "affected", "graph", "log", "forget", "gc", "schemas"])
def test_a_wrong_option_is_one_message_and_exit_code_3(project: Looking, command: str) -> None:
    said = project.refusal(command, "--nosuch", code=3)
    assert said == f"doit {command}: option --nosuch not recognized\nhint: ./doitw help {command}\n"


@pytest.mark.parametrize("command", ["why", "status", "plan", "graph"])
def test_a_wrong_configuration_is_said_as_in_a_run(project: Looking, command: str) -> None:
    done = project.doit(command, "--json", env={"TOY_CONFIG_ERROR": "1"})
    assert (done.code, done.out) == (3, "")
    assert done.err == "toy.yaml: line 3: unknown key 'imgae'\nhint: did you mean 'image'?\n"


def test_what_dodo_py_prints_does_not_mix_with_json(project: Looking) -> None:
    with (project.root / "dodo.py").open("a") as file:
        file.write("\nprint('hello from dodo.py')\n")
    assert project.json("status")["schema"] == 1


def test_a_reader_that_has_seen_enough_is_no_failure(project: Looking) -> None:
    project.fresh()
    script = f"{sys.executable} -m doit why | head -n 1"
    done = project.doit(prefix=("sh", "-c", script, "sh"))
    assert (done.code, done.err) == (0, "")


def test_looking_imports_nothing_heavy(project: Looking) -> None:
    project.fresh()
    for command in (("why", "third"), ("status",), ("plan",), ("graph",)):
        done = project.doit(*command, env={"PYTHONPROFILEIMPORTTIME": "1"})
        imported = {line.rsplit("|", 1)[-1].strip() for line in done.err.splitlines()}
        assert "pipeline.commands.survey" in imported
        assert not imported & {"rich", "docker", "urllib3", "requests", "http.client", "pydantic", "statistics"}


def test_help_and_the_list_of_commands_have_one_line_for_each(project: Looking) -> None:
    out = project.words("help")
    for command in ("why", "status", "plan", "affected", "graph", "log", "forget", "gc", "schemas"):
        assert re.search(rf"^  -m {command} +\w.{{20,90}}$", out, re.MULTILINE), command
        assert f"-m {command}" in project.words("help", command)
    for hidden in ("dumpdb", "ignore", "strace", "reset-dep"):
        assert hidden not in out
    for word in ("test", "set-up", "relock"):
        assert f"\n  ./doitw {word}" in out


@pytest.mark.parametrize("word", ["test", "set-up", "relock"])
def test_help_knows_the_words_of_doitw(project: Looking, word: str) -> None:
    done = project.doit("help", word)
    assert done.code == 0
    assert done.out.startswith(f"./doitw {word}")


def test_help_on_what_is_no_command_and_no_task_is_refused(project: Looking) -> None:
    said = project.refusal("help", "plna", code=3)
    assert said == "'plna' is neither a command nor a task\nhint: did you mean 'plan'?\n"
    assert project.refusal("help", "why", "plan", code=3).startswith("doit help takes one word, not 2\n")
    (project.root / "dodo.py").write_text(
        "from doit.exceptions import InvalidDodoFile\nraise InvalidDodoFile('torn')\n"
    )
    assert "torn" in project.refusal("help", "first", code=3)


def test_a_variable_on_the_command_line_is_refused(project: Looking) -> None:
    said = "'TOY=1' is not a task\nhint: put environment variables before the command: TOY=1 ./doitw …\n"
    assert project.refusal("why", "TOY=1", code=3) == said


@pytest.mark.parametrize("command", ["list", "help"])
def test_a_reader_that_has_gone_is_no_failure_of(project: Looking, command: str) -> None:
    script = f"(sleep 0.5; {sys.executable} -m doit {command}; echo $? >&2) | true"
    done = project.doit(prefix=("sh", "-c", script, "sh"))
    assert done.err == "0\n"
