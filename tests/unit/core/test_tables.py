"""Tables: aligned whatever is in them."""

from pipeline.core.tables import REPORT_COLUMNS, format_boxes, format_table


def test_a_table_is_aligned_whatever_its_colours() -> None:
    rows = [("a", "\x1b[32mup to date\x1b[0m", "x"), ("bbb", "plain", "y")]
    assert format_table(rows) == ["a    \x1b[32mup to date\x1b[0m  x", "bbb  plain       y"]
    assert format_table([]) == []


def test_boxes_have_one_width_and_wrap_what_is_longer() -> None:
    lines = format_boxes(("check", "found"), [("ray", "word " * 60), ("[red]", "two\nlines")])
    assert {len(line) for line in lines} == {REPORT_COLUMNS}
    assert any("[red]" in line for line in lines)
