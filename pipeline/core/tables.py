"""Tables for people: aligned columns, or boxes for the reports of a task."""

import re
from collections.abc import Sequence

REPORT_COLUMNS = 120
ANSI_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as aligned lines. Colours take no room."""
    widths = [max((_width(cell) for cell in column), default=0) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_boxes(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table with lines around it, at most REPORT_COLUMNS wide. Long cells wrap."""
    # It takes longer to import than a no-op takes.
    import io

    from rich.console import Console
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=REPORT_COLUMNS, color_system=None, markup=False).print(table)
    return text.getvalue().splitlines()


def _width(cell: str) -> int:
    return len(ANSI_COLOURS.sub("", cell))
