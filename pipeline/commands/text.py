"""Text for people: trees, durations, ages, states, shortened hashes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.graph.graph import Graph

HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{12,}\b")
STATES: Mapping[str, tuple[str, str]] = {
    "skip": ("up to date", "32"),
    "restore": ("to restore", "36"),
    "run": ("to run", "33"),
    "depends": ("depends", "35"),
    "later": ("not needed", "90"),
    "running": ("running", "34"),
}
"""For each state of a task its words, and its colour in a terminal (ANSI)."""


def shorten_hashes(text: str) -> str:
    """Returns a text with every long hash in it cut to twelve digits."""
    return HASH.sub(r"\1…", text)


def format_duration(seconds: float | None) -> str:
    """Returns `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`; a dash if it is not known."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_age(seconds: float | None) -> str:
    """Returns an age in its largest unit: `12 s`, `5 min`, `3 h`, `4 d`; a dash if it is not known."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def format_size(count: float) -> str:
    """Returns bytes in decimal units: `0 B`, `1.5 MB`."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def counted(number: int, one: str, more: str = "") -> str:
    """Returns `1 file`, `2 files`; `more` is the plural where it is not made with an s."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def ascii_only(text: str) -> str:
    """Returns a tree for a terminal without box-drawing characters."""
    return text.translate({ord("└"): "`", ord("├"): "|", ord("│"): "|", ord("─"): "-"})


def state_text(name: str, *, colour: bool = False, note: str = "") -> str:
    """Returns a state in words."""
    words, ansi = STATES[name]
    words += f" ({note})" if note else ""
    return f"\x1b[{ansi}m{words}\x1b[0m" if colour else words


def format_tree(graph: Graph, names: Sequence[str], label: Callable[[str], str]) -> Iterator[str]:
    """Yields the graph from its ends back to its beginnings: below each task what it waits for.

    What hangs below a task is shown once. `names` are the tasks to show, with everything that they wait for among them.
    """
    waited = {up for name in names for up in (*graph.tasks[name].needs, *graph.tasks[name].after)}
    shown: set[str] = set()
    # Each with what stands before it, before what hangs below it, and behind it. Without recursion: see Graph.order().
    waiting = [(name, "", "", "") for name in reversed(names) if name not in waited]
    while waiting:
        name, first, rest, how = waiting.pop()
        task = graph.tasks[name]
        below = [(up, "") for up in task.needs] + [(up, " (order only)") for up in task.after if up not in task.needs]
        again = name in shown and bool(below)
        shown.add(name)
        yield f"{first}{label(name)}{how}{' (shown above)' if again else ''}"
        if again:
            continue
        forks = [("├─ ", "│  ")] * (len(below) - 1) + [("└─ ", "   ")]
        branches = [
            (up, rest + fork, rest + deeper, how) for (up, how), (fork, deeper) in zip(below, forks, strict=False)
        ]
        waiting += reversed(branches)
