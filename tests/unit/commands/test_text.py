"""Text and pictures of the graph."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands.graph_html import HEIGHT, WIDTH, place_boxes, render_page
from pipeline.commands.survey import survey_tasks
from pipeline.commands.text import (
    counted,
    format_age,
    format_duration,
    format_size,
    format_tree,
    shorten_hashes,
)
from pipeline.core.errors import ConfigError
from pipeline.graph.graph import Graph
from pipeline.graph.selection import select_tasks
from pipeline.graph.task import Claim, Inputs, Outputs, Run, Task

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "e": ()}


def never(_run: Run) -> Outputs:
    raise AssertionError("nothing runs while a command looks")


def nothing(_outputs: Outputs) -> tuple[Claim, ...]:
    return ()


def graph(needs: dict[str, tuple[str, ...]], root: Path, after: tuple[str, ...] = ()) -> Graph:
    made = Graph(root)
    for name, ups in needs.items():
        order = after if name == "d" else ()
        made.add(Task(name=name, doc=f"<{name}>", inputs=Inputs(), needs=ups, after=order, run=never, world=nothing))
    return made


def test_a_tree_shows_what_hangs_below_a_task_once(tmp_path: Path) -> None:
    made = graph(DIAMOND, tmp_path, after=("e",))
    assert list(format_tree(made, made.order(), str)) == [
        "d",
        "├─ b",
        "│  └─ a",
        "├─ c",
        "│  └─ a",
        "└─ e (order only)",
    ]
    above = graph({"a": (), "b": ("a",), "c": ("b",), "d": ("b", "c")}, tmp_path)
    assert list(format_tree(above, above.order(), str)) == ["d", "├─ b", "│  └─ a", "└─ c", "   └─ b (shown above)"]


def test_a_chain_that_is_longer_than_the_stack_is_a_tree(tmp_path: Path) -> None:
    chain: dict[str, tuple[str, ...]] = {"t0": ()} | {f"t{i}": (f"t{i - 1}",) for i in range(1, 2000)}
    made = graph(chain, tmp_path)
    lines = list(format_tree(made, made.order(), str))
    assert [line.split()[-1] for line in lines] == [f"t{i}" for i in reversed(range(2000))]


@given(st.data())
def test_boxes_never_overlap_and_every_edge_goes_to_the_right(data: st.DataObject) -> None:
    names = [f"t{i}" for i in range(data.draw(st.integers(1, 15)))]
    waits = {
        name: tuple(sorted(data.draw(st.sets(st.sampled_from(names[:i]), max_size=4)))) if i else ()
        for i, name in enumerate(names)
    }
    places = place_boxes(waits)
    assert all(places[up][0] + WIDTH < places[name][0] for name, ups in waits.items() for up in ups)
    boxes = sorted(places.values())
    for (x1, y1), (x2, y2) in pairwise(boxes):
        assert x1 != x2 or y2 - y1 >= HEIGHT


def test_the_page_escapes_what_tasks_are_called(tmp_path: Path) -> None:
    made = Graph(tmp_path)
    name = 'x:</script><b>"&'
    made.add(Task(name=name, doc="<i>", inputs=Inputs(), run=never, world=nothing))
    text = render_page(survey_tasks(made), title="<title>")
    assert "<b>" not in text
    assert "<i>" not in text
    assert text.count("</script>") == 2


def test_a_page_of_no_tasks_is_a_page(tmp_path: Path) -> None:
    assert render_page(survey_tasks(Graph(tmp_path)), title="none").endswith("</html>\n")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"), (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
        (3599.7, "1 h 0 min"), (7500, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations_read_as_one_would_say_them(seconds: float | None, said: str) -> None:
    assert format_duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "-"), (-3, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (200000, "2 d")]
)
def test_ages_have_one_unit_and_a_clock_set_back_makes_none_negative(seconds: float | None, said: str) -> None:
    assert format_age(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (3_900_000_000, "3.9 GB"), (2e12, "2.0 TB")],
)
def test_sizes_are_decimal(count: float, said: str) -> None:
    assert format_size(count) == said


def test_hashes_are_cut_and_names_are_not() -> None:
    assert shorten_hashes("sha256:" + "ab" * 32) == "sha256:abababababab…"
    assert shorten_hashes("a decade of facades, 1234567890123") == "a decade of facades, 1234567890123"


def test_a_bare_kind_means_its_default_or_all_of_the_kind(tmp_path: Path) -> None:
    made = graph({"build:cpu": (), "build:spark": (), "lock:cpu": (), "registry": ()}, tmp_path)
    assert select_tasks(made, ["build"]) == ["build:cpu", "build:spark"]
    made.defaults["build"] = "build:cpu"
    assert select_tasks(made, ["build", "registry", "build:cpu"]) == ["build:cpu", "registry"]
    assert select_tasks(made, ["build:*", "*:cpu"]) == ["build:cpu", "build:spark", "lock:cpu"]
    assert select_tasks(made, []) == []
    for word, hint in (("biuld", "'build'"), ("build:cpp", "'build:cpu'"), ("", "known here")):
        with pytest.raises(ConfigError, match="is not a task") as error:
            select_tasks(made, [word])
        assert hint in error.value.hint


def test_one_is_counted_without_an_s() -> None:
    assert [counted(n, "input") for n in (0, 1, 2)] == ["0 inputs", "1 input", "2 inputs"]
    assert counted(1, "file differs", "files differ") == "1 file differs"
    assert counted(3, "file differs", "files differ") == "3 files differ"
