"""log and graph: the last words of a task, and the picture of all."""

import json
import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.flow.looking_project import Looking
from tests.flow.project import ALL, ended, wait_for


@pytest.fixture
def project(tmp_path: Path) -> Looking:
    return Looking(tmp_path / "toy")


class Page(HTMLParser):
    """What a page refers to, and the tags it is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_log_replays_the_last_output_of_a_task_that_is_up_to_date(project: Looking) -> None:
    project.fresh()
    project.doit()
    log = (project.root / "artifacts/logs/first-x/latest").read_text()
    assert "read 5 letters\n" in log
    assert project.words("log", "first") == log


def test_log_of_several_tasks_says_whose_each_is(project: Looking) -> None:
    project.fresh()
    out = project.words("log", "s*:x", "other")
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("== ")] == ["== second", "== other"]


def test_log_lists_older_ones_newest_first(project: Looking) -> None:
    project.fresh()
    project.write("other.txt", "changed")
    project.doit("other")
    logs = project.json("log", "other", "--list")["logs"]
    assert len(logs) == 2
    assert logs[0]["log"] > logs[1]["log"]
    assert "lines" not in logs[0]
    assert len(project.words("log", "other", "--list").splitlines()) == 3
    whole = project.json("log", "other")["logs"]
    assert len(whole) == 1
    assert whole[0]["lines"] == project.words("log", "other").splitlines()


def test_log_follows_a_running_task_to_its_end(project: Looking) -> None:
    process = project.start(env={"TOY_WAIT": "first:x=30"})
    wait_for(lambda: "waiting" in "".join(project.happened()))
    follower = project.start("log", "first", "-f")
    time.sleep(1.5)
    assert follower.poll() is None
    project.write("go", "")
    assert ended(process).code == 0
    done = ended(follower, within=20)
    assert done.code == 0
    assert "read 5 letters\n" in done.out
    assert done.out == project.words("log", "first")


def test_log_of_a_task_that_never_ran_and_of_no_task(project: Looking) -> None:
    assert project.refusal("log", "first", code=1).startswith("first:x has no log: it has not run here\n")
    assert project.refusal("log", code=3) == "doit log: name a task\nhint: ./doitw log TASK\n"
    both = project.refusal("log", "one", "-f", "--json", code=3)
    assert both == "doit log: --json and -f cannot be combined\nhint: leave one of them out\n"


def test_graph_is_a_tree_from_the_ends_with_states(project: Looking) -> None:
    project.fresh()
    project.write("in.txt", "changed")
    lines = [re.sub(r"  \d+\.\d s$", "", line) for line in project.words("graph").splitlines()]
    assert lines == [
        "third:x  depends",
        "└─ second:x  depends",
        "   └─ first:x  to run",
        "other:x  up to date",
    ]
    assert project.tasks("graph", "second")["second:x"]["needs"] == ["first:x"]
    assert "third:x" not in project.tasks("graph", "second")


def test_graph_draws_with_what_the_terminal_knows(project: Looking) -> None:
    done = project.doit("graph", "third", env={"PYTHONIOENCODING": "ascii"})
    assert done.out.splitlines() == ["third:x  to run", "`- second:x  to run", "   `- first:x  to run"]


def test_the_page_has_every_task_and_edge_and_loads_nothing(project: Looking) -> None:
    project.fresh()
    assert project.words("graph", "--html", "out.html") == "written: out.html\n"
    text = (project.root / "out.html").read_text()
    page = Page(text)
    boxes = [attrs["data-task"] for tag, attrs in page.tags if attrs.get("class") == "task"]
    assert set(boxes) == set(ALL)
    edges = {(attrs["data-from"], attrs["data-to"]) for tag, attrs in page.tags if attrs.get("class") == "edge"}
    assert edges == {("first:x", "second:x"), ("second:x", "third:x")}
    assert not [attrs for tag, attrs in page.tags if {"src", "href"} & set(attrs) or tag in ("link", "img", "iframe")]
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|url\(", text)
    inside = re.search(r'<script type="application/json" id="tasks">(.*?)</script>', text, re.DOTALL)
    assert inside
    assert "first:x: make first:x" in json.loads(inside[1])["first:x"]


def test_the_page_lies_where_the_command_was_given(project: Looking) -> None:
    done = project.doit("-d", "src", "graph", "--html", "x.html")
    assert done.code == 0, done.err
    assert (project.root / "x.html").exists()
    assert not (project.root / "src/x.html").exists()


def test_the_page_lies_below_the_folder_that_doitw_was_called_from(project: Looking) -> None:
    done = project.doit("graph", "--html", "x.html", env={"TANDEM_CWD": f"{project.root}/src"})
    assert done.code == 0, done.err
    assert (project.root / "src/x.html").exists()
    assert not (project.root / "x.html").exists()


@pytest.mark.parametrize("folder", ["src", "/"])
def test_a_page_that_would_be_a_folder_is_refused(project: Looking, folder: str) -> None:
    said = project.refusal("graph", "--html", folder, code=3)
    assert said == f"--html {folder}: that is a folder\nhint: name a file in it\n"


def test_a_page_goes_through_a_link_and_into_no_pipe(project: Looking) -> None:
    project.write("real.html", "old")
    (project.root / "link.html").symlink_to("real.html")
    project.words("graph", "--html", "link.html")
    assert (project.root / "link.html").is_symlink()
    assert "<html" in (project.root / "real.html").read_text()
    os.mkfifo(project.root / "pipe")
    for name in ("pipe", "-"):
        said = project.refusal("graph", "--html", name, code=3)
        assert said == f"--html {name}: that is not a plain file\nhint: name one, as in graph.html\n"


def test_a_page_that_cannot_be_written_is_one_message(project: Looking) -> None:
    assert "x.html: cannot be written" in project.refusal("graph", "--html", "/proc/x.html", code=4)


def test_no_folder_is_made_for_a_page(project: Looking) -> None:
    said = project.refusal("graph", "--html", "new/x.html", code=3)
    assert said == f"--html new/x.html: the folder {project.root}/new does not exist\nhint: make it first\n"
    assert not (project.root / "new").exists()
