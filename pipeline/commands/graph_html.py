"""The graph as one HTML file: boxes in layers, edges, states; nothing is loaded from anywhere."""

import json
from collections.abc import Mapping
from html import escape

from pipeline.commands.survey import TaskStatus, iso_time
from pipeline.commands.text import STATES, format_duration, shorten_hashes

WIDTH, HEIGHT, GAP_X, GAP_Y, EDGE = 178, 46, 84, 22, 24

Place = tuple[int, int]

STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --paper: #fbfbfd; --box: #fff; --line: #9aa3b5; --hit: #2563eb;
  --skip: #15803d; --restore: #0e7490; --run: #b45309; --depends: #7e22ce; --later: #64748b;
  --running: #1d4ed8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ee; --paper: #14171f; --box: #1d212c; --line: #596377;
  --hit: #7aa2ff; --skip: #4ade80; --restore: #22d3ee; --run: #fbbf24; --depends: #c084fc; --later: #94a3b8;
  --running: #93c5fd; } }
body { margin: 0; padding: 20px; background: var(--paper); color: var(--ink); font: 14px/1.4 system-ui, sans-serif; }
h1 { font-size: 18px; margin: 0 0 4px; } p { margin: 0 0 12px; }
.key { display: inline-block; margin-right: 16px; } .key::before { content: "■ "; color: var(--c); }
.scroll { overflow: auto; } svg text { fill: var(--ink); pointer-events: none; } svg .small { font-size: 11px; }
.task { cursor: pointer; } .task rect { fill: var(--box); stroke: var(--c); stroke-width: 1.5; }
.task .bar { fill: var(--c); stroke: none; } .task .small { fill: var(--c); }
.edge { fill: none; stroke: var(--line); stroke-width: 1.4; } .edge.after { stroke-dasharray: 4 4; }
svg.picked .task, svg.picked .edge { opacity: .18; }
svg.picked .task.hit, svg.picked .edge.hit { opacity: 1; }
svg.picked .edge.hit { stroke: var(--hit); stroke-width: 2; } .task.self rect { stroke-width: 3; }
#details { white-space: pre-wrap; font: 12px/1.5 ui-monospace, monospace; margin-top: 12px; min-height: 8em; }
"""
SCRIPT = """
const svg = document.querySelector("svg"), details = document.getElementById("details");
const tasks = JSON.parse(document.getElementById("tasks").textContent);
const boxes = new Map([...svg.querySelectorAll(".task")].map(box => [box.dataset.task, box]));
const edges = [...svg.querySelectorAll(".edge")];
let chosen = null;
function reach(start, from, to) {
  const seen = new Set([start]), waiting = [start];
  while (waiting.length) {
    const at = waiting.pop();
    for (const edge of edges)
      if (edge.dataset[from] === at && !seen.has(edge.dataset[to]))
        seen.add(edge.dataset[to]), waiting.push(edge.dataset[to]);
  }
  return seen;
}
function show(name) {
  svg.classList.toggle("picked", name !== null);
  const up = name === null ? new Set() : reach(name, "to", "from");
  const down = name === null ? new Set() : reach(name, "from", "to");
  for (const [task, box] of boxes) {
    box.classList.toggle("hit", up.has(task) || down.has(task));
    box.classList.toggle("self", task === name);
  }
  for (const { dataset: { from, to }, classList } of edges)
    classList.toggle("hit", up.has(from) && up.has(to) || down.has(from) && down.has(to));
  details.textContent = name === null ? "" : tasks[name];
}
for (const [task, box] of boxes) {
  box.addEventListener("mouseenter", () => show(task));
  box.addEventListener("focus", () => show(task));
  box.addEventListener("mouseleave", () => show(chosen));
  box.addEventListener("blur", () => show(chosen));
  box.addEventListener("click", event => {
    chosen = chosen === task ? null : task;
    show(chosen ?? task);
    event.stopPropagation();
  });
}
svg.addEventListener("click", () => show(chosen = null));
document.addEventListener("keydown", event => { if (event.key === "Escape") show(chosen = null); });
"""


def render_page(statuses: Mapping[str, TaskStatus], *, title: str) -> str:
    """Returns the file. Pointing at a task shows what it waits for and what waits for it; a click keeps it."""
    places = place_boxes({name: _waits(status, statuses) for name, status in statuses.items()})
    width = max((x for x, _ in places.values()), default=0) + WIDTH + EDGE
    height = max((y for _, y in places.values()), default=0) + HEIGHT + EDGE
    edges = "\n".join(
        _edge(places, up, name, statuses[name]) for name in statuses for up in _waits(statuses[name], statuses)
    )
    boxes = "\n".join(_box(status, places[name]) for name, status in statuses.items())
    keys = "".join(
        f'<span class="key" style="--c: var(--{state})">{words}</span>' for state, (words, _) in STATES.items()
    )
    # In a script element only "<" could end it.
    texts = json.dumps({name: _details(status) for name, status in statuses.items()}).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(title)}: tasks</title><style>{STYLE}</style></head>
<body>
<h1>{escape(title)}: tasks</h1>
<p>{keys}<span>dashed: order only</span></p>
<div class="scroll">
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
{edges}
{boxes}
</svg>
</div>
<div id="details"></div>
<script type="application/json" id="tasks">{texts}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def place_boxes(waits: Mapping[str, tuple[str, ...]]) -> dict[str, Place]:
    """Returns each box's upper left corner: a layer right of all that it waits for, near the middle of these.

    `waits` names for each task, in the order of a run, what it waits for.
    """
    layers: list[list[str]] = []
    depth: dict[str, int] = {}
    for name, ups in waits.items():
        depth[name] = max((depth[up] + 1 for up in ups), default=0)
        while len(layers) <= depth[name]:
            layers.append([])
        layers[depth[name]].append(name)
    row: dict[str, float] = {}
    for layer in layers:
        wish = {name: _middle([row[up] for up in waits[name]]) for name in layer}
        at = 0.0
        for name in sorted(layer, key=lambda name: wish[name]):
            at = max(at, wish[name])
            row[name] = at
            at += 1
    return {
        name: (round(EDGE + depth[name] * (WIDTH + GAP_X)), round(EDGE + row[name] * (HEIGHT + GAP_Y)))
        for name in waits
    }


def _middle(rows: list[float]) -> float:
    return sum(rows) / len(rows) if rows else 0.0


def _waits(status: TaskStatus, statuses: Mapping[str, TaskStatus]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(up for up in (*status.task.needs, *status.task.after) if up in statuses))


def _edge(places: Mapping[str, Place], up: str, name: str, status: TaskStatus) -> str:
    (x1, y1), (x2, y2) = places[up], places[name]
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    bend = max(GAP_X, x2 - x1) // 2
    kind = "edge" if up in status.task.needs else "edge after"
    path = f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return f'<path class="{kind}" data-from="{escape(up)}" data-to="{escape(name)}" d="{path}"/>'


def _box(status: TaskStatus, place: Place) -> str:
    x, y = place
    name = escape(status.task.name)
    words = STATES[status.state][0] + (f" · {format_duration(status.seconds)}" if status.seconds is not None else "")
    return (
        f'<g class="task" tabindex="0" data-task="{name}" style="--c: var(--{status.state})" '
        f'transform="translate({x} {y})"><title>{escape(status.task.doc)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="7"/><rect class="bar" width="5" height="{HEIGHT}" rx="2"/>'
        f'<text x="15" y="19">{name}</text><text class="small" x="15" y="36">{escape(words)}</text></g>'
    )


def _details(status: TaskStatus) -> str:
    lines = [f"{status.task.name}: {status.task.doc}", f"{STATES[status.state][0]}"]
    if status.running:
        lines[-1] += f", in process {status.running.pid}, since {iso_time(status.running.since)}"
    if status.digest:
        lines.append(f"result {status.digest}, {iso_time(status.finished)}, took {format_duration(status.seconds)}")
    for reason in status.decision.reasons:
        old = "not there" if reason.old is None else shorten_hashes(reason.old)
        lines.append(f"{reason.input}: {old} → {'gone' if reason.new is None else shorten_hashes(reason.new)}")
    return "\n".join(lines)
