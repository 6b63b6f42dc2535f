"""affected: what a git change touches."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flow.looking_project import CONFIGURED, Looking


@pytest.fixture
def project(tmp_path: Path) -> Looking:
    return Looking(tmp_path / "toy")


def test_nothing_is_affected_where_nothing_changed(project: Looking) -> None:
    project.commit()
    answer = project.json("affected")
    assert (answer["files"], answer["tasks"]) == ([], [])
    assert project.words("affected").startswith("no task is touched\n")


def test_an_edited_file_touches_the_task_that_declares_it_and_what_is_downstream(project: Looking) -> None:
    project.commit()
    project.write("in.txt", "changed")
    tasks = project.tasks("affected")
    assert list(tasks) == ["first:x", "second:x", "third:x"]
    assert tasks["first:x"]["inputs"] == ["file:in.txt"]
    assert (tasks["third:x"]["inputs"], tasks["third:x"]["upstream"]) == ([], ["second:x"])


COMMITTED = """

from msgspec.structs import replace

GRAPH.tasks["first:x"] = replace(GRAPH.tasks["first:x"], commits=("made.lock",))
"""


def test_an_edit_of_a_committed_result_touches_its_task(project: Looking) -> None:
    project.write("dodo.py", (project.root / "dodo.py").read_text() + COMMITTED)
    project.write("made.lock", "1")
    project.commit()
    project.write("made.lock", "2")
    tasks = project.tasks("affected")
    assert list(tasks) == ["first:x", "second:x", "third:x"]
    assert tasks["first:x"]["inputs"] == ["file:made.lock"]


def stage(project: Looking) -> None:
    project.write("in.txt", "changed")
    project.git("add", "in.txt")


EDITS: dict[str, Callable[[Looking], object]] = {
    "staged": stage,
    "new": lambda project: project.write("src/b.txt", "b"),
    "deleted": lambda project: (project.root / "src/a.txt").unlink(),
    "renamed": lambda project: project.git("mv", "src/a.txt", "elsewhere.txt"),
    "behind a link": lambda project: project.write("behind.txt", "changed"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_every_kind_of_uncommitted_change_counts(project: Looking, edit: str) -> None:
    project.write("behind.txt", "x")
    (project.root / "src/link").symlink_to("../behind.txt")
    project.commit()
    EDITS[edit](project)
    assert list(project.tasks("affected")) == ["first:x", "second:x", "third:x"]


def test_a_stage_s_code_touches_the_task_that_it_makes(project: Looking) -> None:
    project.commit()
    project.write("pipeline/toy.py", "def shout(text):\n    return text\n")
    assert project.tasks("affected")["first:x"]["inputs"] == ["code:pipeline.toy"]


def test_a_file_that_no_task_declares_touches_nothing(project: Looking) -> None:
    project.commit()
    project.write("unrelated.txt", "x")
    answer = project.json("affected")
    assert answer["files"] == ["unrelated.txt"]
    assert answer["tasks"] == []


def test_names_with_spaces_quotes_and_other_alphabets_count_too(project: Looking) -> None:
    project.write('src/ä "b"\n c.txt', "a")
    project.commit()
    project.write('src/ä "b"\n c.txt', "b")
    assert project.tasks("affected")["first:x"]["inputs"] == ['file:src/ä "b"\n c.txt']


def test_commits_since_the_base_count_and_the_base_s_own_do_not(project: Looking) -> None:
    project.commit()
    project.git("checkout", "-q", "-b", "work")
    project.write("other.txt", "changed")
    project.commit()
    project.git("checkout", "-q", "main")
    project.write("in.txt", "changed on main")
    project.commit()
    project.git("checkout", "-q", "work")
    assert list(project.tasks("affected", "--base", "main")) == ["other:x"]
    assert list(project.tasks("affected")) == []


def test_an_edited_configuration_touches_the_tasks_whose_parameters_it_changes(project: Looking) -> None:
    with (project.root / "dodo.py").open("a") as file:
        file.write(CONFIGURED)
    project.commit()
    project.params({"size": 2, "colour": "red"})
    tasks = project.tasks("affected")
    assert tasks["first:x"]["inputs"] == ["param:colour", "param:size"]
    assert "other:x" not in tasks
    project.write("params.json", '{ "second": {},  "first": {"size": 1} }')
    assert project.json("affected")["tasks"] == []


def test_a_task_that_the_base_did_not_have_is_touched(project: Looking) -> None:
    with (project.root / "dodo.py").open("a") as file:
        file.write(CONFIGURED.replace("in GRAPH.tasks", 'in ("first:x", "second:x", "third:x")'))
    project.commit()
    project.params({"size": 1}, {"size": 1})
    tasks = project.tasks("affected")
    assert tasks["other:x"]["inputs"] == ["task:other:x"]
    assert tasks["second:x"]["inputs"] == ["param:size"]
    assert "first:x" not in tasks


def test_a_configuration_that_was_wrong_then_touches_every_task(project: Looking) -> None:
    with (project.root / "dodo.py").open("a") as file:
        file.write(CONFIGURED.replace("    return graph", "    raise errors.ConfigError('wrong')"))
    project.commit()
    project.params({"size": 2})
    assert list(project.tasks("affected")) == ["first:x", "second:x", "third:x", "other:x"]


def test_a_checkout_below_the_top_of_its_repository_works(tmp_path: Path) -> None:
    project = Looking(tmp_path / "above" / "toy")
    with (project.root / "dodo.py").open("a") as file:
        file.write(CONFIGURED)
    above = Looking(tmp_path / "above")
    above.commit()
    above.write("in.txt", "not ours")
    project.params({"size": 2})
    answer = project.json("affected")
    assert answer["files"] == ["params.json"]
    assert answer["tasks"][0]["inputs"] == ["param:size"]


def test_a_revision_that_is_not_there_is_one_message(project: Looking) -> None:
    project.commit()
    assert project.refusal("affected", "--base", "nosuch", code=3).startswith("'nosuch' is not a commit here\nhint: ")
    assert project.refusal("affected", "--base=--output=x", code=3).startswith("'--output=x' is not a commit here\n")


def test_without_a_repository_it_says_so(project: Looking) -> None:
    assert "git sees no repository here" in project.refusal("affected", code=4)


def test_a_link_that_leads_to_itself_is_a_mistake_and_not_a_fault(project: Looking) -> None:
    (project.root / "src/loop").symlink_to("loop")
    project.commit()
    said = "src/loop: a link that leads to itself\nhint: remove it"
    assert project.refusal("affected", code=3).startswith(said)
    assert said in project.refusal("plan", "first", code=3)


def test_it_takes_no_task(project: Looking) -> None:
    assert project.refusal("affected", "first", code=3).startswith("doit affected takes no task")


def test_git_s_index_is_not_touched(project: Looking) -> None:
    project.commit()
    project.write("in.txt", "changed")
    index = project.root / ".git/index"
    before = (index.read_bytes(), index.stat().st_mtime_ns)
    project.words("affected")
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before
