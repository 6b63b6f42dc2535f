"""What a run says: exit codes, failures in words, logs, report, one screen for parallel tasks."""

import json
import re
import sys
import time

import pytest

from tests.flow.project import ALL, Project, ended, wait_for


@pytest.mark.parametrize(("kind", "code"), [("expected", 1), ("bug", 2), ("config", 3), ("host", 4), ("busy", 5)])
def test_each_kind_of_failure_has_its_exit_code(project: Project, kind: str, code: int) -> None:
    done = project.doit(env={"TOY_FAIL": f"second:x={kind}"})
    assert done.code == code
    assert project.report()["exit"] == code


def test_dependents_of_a_failure_do_not_change_the_exit_code(project: Project) -> None:
    done = project.doit("-c", env={"TOY_FAIL": "first:x=expected"})
    assert done.code == 1
    assert project.outcomes() == {"first:x": "failed", "second:x": "blocked", "third:x": "blocked", "other:x": "ran"}


def test_the_worst_of_several_failures_decides(project: Project) -> None:
    (project.root / "other.txt").unlink()
    assert project.doit("-c", env={"TOY_FAIL": "first:x=host"}).code == 2


def test_an_expected_failure_is_a_message_a_hint_the_last_lines_and_the_log(project: Project) -> None:
    done = project.doit("first", env={"TOY_FAIL": "first:x=expected"})
    assert "Traceback" not in done.out + done.err
    lines = [line.removeprefix("first:x | ") for line in done.out.splitlines()]
    assert lines[lines.index("it did not work") + 1] == "hint: try it differently"
    assert "  the last line before it failed" in lines
    log = next(line.removeprefix("log: ") for line in lines if line.startswith("log: "))
    assert "the last line before it failed\n" in (project.root / log).read_text()


def test_why_a_task_runs_is_said_once_also_if_it_fails(project: Project) -> None:
    done = project.doit("first", env={"TOY_FAIL": "first:x=expected"})
    assert done.out.count("because record") == 1


def test_a_bug_keeps_its_traceback(project: Project) -> None:
    done = project.doit("first", env={"TOY_FAIL": "first:x=bug"})
    assert "ZeroDivisionError: a bug of the stage" in done.out
    assert "toy_dodo" not in done.err
    assert "in _fail" in done.out


def test_a_wrong_configuration_is_one_message_and_exit_code_3(project: Project) -> None:
    done = project.doit(env={"TOY_CONFIG_ERROR": "1"})
    assert done.code == 3
    assert done.err == "toy.yaml: line 3: unknown key 'imgae'\nhint: did you mean 'image'?\n"
    assert project.doit("list", env={"TOY_CONFIG_ERROR": "1"}).code == 3


@pytest.mark.parametrize(
    "args", [("nosuch",), ("--nosuch",), ("-n", "x"), ("-n", "0"), ("first:nosuch",), ("--backend", "dbm")]
)
def test_a_wrong_command_line_exits_with_3_and_no_traceback(project: Project, args: tuple[str, ...]) -> None:
    done = project.doit(*args)
    assert done.code == 3
    assert "Traceback" not in done.err + done.out
    assert done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("TOY=1",), "'TOY=1' is not a task\nhint: put environment variables before the command: TOY=1 ./doitw …\n"),
        (("-n", "1", "first", "TOY=1"), "'TOY=1' is not a task\nhint: put environment variables before"),
        (("--nosuch",), "doit run: option --nosuch not recognized\nhint: ./doitw help run\n"),
        (("first", "--nosuch"), "doit run: option --nosuch not recognized\nhint: ./doitw help run\n"),
        (("-n", "x"), "doit run: "),
    ],
)
def test_a_wrong_word_is_one_message_and_one_hint(project: Project, args: tuple[str, ...], said: str) -> None:
    done = project.doit(*args)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(said)
    assert len(done.err.splitlines()) == 2
    assert project.happened() == []


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "-1"])
def test_a_wrong_time_out_is_named_also_if_nothing_has_to_run(project: Project, value: str) -> None:
    project.fresh()
    done = project.doit(env={"TANDEM_LOCK_TIMEOUT": value})
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"TANDEM_LOCK_TIMEOUT={value}: not a number of seconds\n")


@pytest.mark.parametrize("value", ["nonsense", "upgrade:", "upgrade:a,,b", "upgraded", "frozen:a"])
def test_a_wrong_mode_of_locking_is_named_also_if_nothing_has_to_run(project: Project, value: str) -> None:
    project.fresh()
    done = project.doit(env={"TANDEM_LOCK": value})
    assert (done.code, done.out) == (3, "")
    assert done.err == f"TANDEM_LOCK={value}: not one of frozen, upgrade, upgrade:NAME[,NAME]\n"


@pytest.mark.parametrize("value", ["", "frozen", "upgrade", "upgrade:torch", "upgrade:torch,vllm"])
def test_a_right_mode_of_locking_is_taken(project: Project, value: str) -> None:
    assert project.doit("other", env={"TANDEM_LOCK": value}).code == 0


def test_the_report_says_everything_about_each_task(project: Project) -> None:
    project.fresh()
    project.write("other.txt", "changed")
    project.doit()
    report = project.report()
    entry = next(entry for entry in report["tasks"] if entry["task"] == "other:x")
    assert report["schema"] == 1
    assert report["exit"] == 0
    assert report["seconds"] > 0
    assert entry["outcome"] == "ran"
    assert [reason["input"] for reason in entry["reasons"]] == ["file:other.txt"]
    assert entry["outputs"]["path"] == "artifacts/out/other:x.txt"
    assert len(entry["digest"]) == 64
    assert (project.root / entry["log"]).exists()


def test_the_log_has_the_whole_output_and_latest_leads_to_it(project: Project) -> None:
    project.doit(env={"TOY_CHATTER": "other:x=500"})
    text = (project.root / "artifacts/logs/other-x/latest").read_text()
    assert re.findall(r"line (\d+) of many", text) == [str(i) for i in range(500)]


def test_parallel_tasks_never_mix_within_a_line(project: Project) -> None:
    done = project.doit("-v", "2", "-n", "4", env={"TOY_CHATTER": "first:x=300"})
    assert done.code == 0
    for line in done.out.splitlines()[:-1]:
        assert re.fullmatch(r"(first|second|third|other):x \| .*", line), line
    assert done.out.count("first:x | line ") == 300


def test_base_and_wheels_run_side_by_side_by_default(project: Project) -> None:
    process = project.start(env={"TOY_WAIT": "first:x=30"})
    wait_for(lambda: project.records("other:x"))
    assert project.records("first:x") == []
    project.write("go", "")
    assert ended(process).code == 0


def test_one_after_the_other_if_asked(project: Project) -> None:
    process = project.start("-n", "1", env={"TOY_WAIT": "first:x=100"})
    wait_for(lambda: (project.root / "happened.txt").exists())
    time.sleep(0.2)
    assert project.records("other:x") == []
    project.write("go", "")
    assert ended(process).code == 0


def test_no_task_runs_twice_when_two_need_it(project: Project) -> None:
    assert project.doit("-n", "4", "third", "second", "first", "third:x").code == 0
    assert sorted(project.happened()) == ["run first:x", "run second:x", "run third:x"]


def test_what_a_stage_prints_is_not_captured(project: Project) -> None:
    assert "printed directly\n" in project.doit("other", env={"TOY_PRINT": "other:x=printed directly"}).out


def test_a_no_op_imports_neither_rich_nor_the_network(project: Project) -> None:
    project.fresh()
    done = project.doit(env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.err.splitlines()}
    assert "pipeline.graph.decide" in imported
    for heavy in ("rich", "docker", "urllib3", "requests", "http.client", "pydantic", "yaml"):
        assert heavy not in imported


def test_times_lie_beside_the_records(project: Project) -> None:
    project.fresh()
    entry = json.loads((project.root / "artifacts/times/other-x.json").read_text())[0]
    assert set(entry) == {"fingerprint", "started", "seconds"}


def test_a_terminal_shows_one_live_line_for_each_running_task(project: Project) -> None:
    terminal = f"import pty, sys; sys.exit(pty.spawn([{sys.executable!r}, '-m', 'doit']) >> 8)"
    done = ended(project.start(program=("-c", terminal), env={"TOY_WAIT": "first:x=1.5", "TERM": "xterm"}))
    assert done.code == 0
    assert re.search(r"first:x\s+\d+ s\s+waiting for go", done.out)
    assert "first:x | done in" in done.out


def test_a_failed_run_names_the_failed_task_in_its_last_line(project: Project) -> None:
    last = project.doit("-n", "1", "-c", "other", "third", env={"TOY_FAIL": "second:x"}).out.splitlines()[-1]
    assert re.fullmatch(r"2 ran, 1 failed, 1 blocked in [\d.]+ s; failed: second:x; exit 1", last)


def test_what_is_up_to_date_may_say_a_few_words_on_its_result(project: Project) -> None:
    project.fresh()
    out = project.doit().out
    assert "other:x | up to date: kept at artifacts/out/other:x.txt\n" in out
    assert "first:x | up to date\n" in out


def test_a_terminal_that_knows_only_ascii_breaks_nothing(project: Project) -> None:
    project.write("src/naïve.txt", "x")
    project.fresh()
    project.write("src/naïve.txt", "y")
    done = project.doit(env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0
    assert "because file:src/na\\xefve.txt" in done.out


def test_a_task_that_is_not_in_the_graph_is_refused_by_name(project: Project) -> None:
    with (project.root / "dodo.py").open("a") as file:
        file.write("\n\ndef task_own():\n    return {'actions': ['echo from a command']}\n")
    done = project.doit("first")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("dodo.py: task 'own' is not in the graph\nhint: ")


def test_the_dependency_database_of_doit_is_never_written(project: Project) -> None:
    project.fresh()
    assert not list(project.root.glob(".doit*"))
    assert project.doit("list", "--all").code == 0
    assert not list(project.root.glob(".doit*"))


def test_doit_list_knows_the_tasks_and_points_to_their_states(project: Project) -> None:
    assert re.findall(r"^\w+:x", project.doit("list", "--all").out, re.MULTILINE) == list(ALL)
    done = project.doit("list", "-s")
    assert (done.code, done.out, done.err) == (3, "", "doit list knows no states\nhint: ./doitw status\n")
    done = project.doit("list", "--nope")
    assert (done.code, done.err) == (3, "doit list: option --nope not recognized\nhint: ./doitw help list\n")


@pytest.mark.parametrize("command", ["clean", "dumpdb", "ignore", "info", "reset-dep", "strace"])
def test_a_command_that_means_the_database_of_doit_points_to_ours(project: Project, command: str) -> None:
    done = project.doit(command, "first")
    assert (done.code, done.out) == (3, "")
    assert re.fullmatch(rf"doit {command} has no meaning here\nhint: .*\n", done.err)
    assert not list(project.root.glob(".doit*"))
