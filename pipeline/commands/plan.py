"""`./doitw plan`: what would run, in order, and how long it takes as a rule."""

from collections.abc import Iterable

from pipeline.commands.base import GraphCommand, Options, print_json, wants_colour
from pipeline.commands.survey import SCHEMA, TaskStatus, reasons_json, running_json, survey_tasks
from pipeline.commands.text import STATES, format_duration, shorten_hashes
from pipeline.core.errors import Exit
from pipeline.core.tables import format_table
from pipeline.graph.decide import UNKNOWN, State
from pipeline.graph.graph import Graph
from pipeline.graph.selection import select_tasks
from pipeline.graph.task import Json

WORDS = {State.SKIP: "skip", State.RESTORE: "restore", State.RUN: "run", State.LATER: "not needed"}
NOTHING = (State.SKIP, State.LATER)


class PlanCommand(GraphCommand):
    """doit's plugin command `plan`."""

    name = "plan"
    doc_purpose = "show what would run for a task, in order, with the usual duration of each"
    doc_usage = "[TASK ...]"
    doc_description = (
        "For each task: run, skip, restore (an earlier result), not needed (what it made is gone, and nothing has to "
        "read it), or depends on (what an upstream task that has to run comes to). Durations are medians of the last "
        "runs here."
    )

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Print one line a task, and the sum."""
        found = list(survey_tasks(graph, select_tasks(graph, words)).values())
        certain, possible = _sum(found, State.RUN), _sum(found, State.DEPENDS)
        if options["json"]:
            tasks: Json = [_json(seen) for seen in found]
            print_json({"schema": SCHEMA, "tasks": tasks, "seconds": certain, "more_seconds_at_most": possible})
            return Exit.OK
        print("\n".join(format_table([_row(i, seen) for i, seen in enumerate(found, 1)])))
        print(_total(found, certain, possible))
        return Exit.OK


def _row(i: int, seen: TaskStatus) -> tuple[str, ...]:
    doing = seen.decision.state not in NOTHING
    word = _word(seen)
    if wants_colour():
        word = f"\x1b[{STATES[seen.state][1]}m{word}\x1b[0m"
    usual = _usual(seen)
    return f"{i:2}", seen.task.name, word, f"usually {format_duration(usual)}" if doing and usual else "", _why(seen)


def _usual(seen: TaskStatus) -> float | None:
    """What was measured are runs: an earlier result is there again sooner."""
    return None if seen.decision.state is State.RESTORE else seen.usual


def _word(seen: TaskStatus) -> str:
    if seen.running:
        return f"running in process {seen.running.pid}"
    state = seen.decision.state
    return f"depends on {', '.join(_on(seen))}" if state is State.DEPENDS else WORDS[state]


def _on(seen: TaskStatus) -> list[str]:
    """The upstream tasks whose results decide, and are not known yet."""
    return [r.input.removeprefix("upstream:") for r in seen.decision.reasons if r.new == UNKNOWN]


def _why(seen: TaskStatus) -> str:
    """The first reason that is its own, in short."""
    if seen.decision.state in (State.SKIP, State.DEPENDS):
        return ""
    own = [reason for reason in seen.decision.reasons if reason.new != UNKNOWN]
    if not own:
        return ""
    said = own[0].input.partition(":")[0] in ("record", "world")
    return (shorten_hashes(own[0].new or "") if said else own[0].input) + (
        f" and {len(own) - 1} more" if own[1:] else ""
    )


def _sum(found: Iterable[TaskStatus], state: State) -> float:
    return round(sum(seen.usual or 0.0 for seen in found if seen.decision.state is state), 3)


def _total(found: list[TaskStatus], certain: float, possible: float) -> str:
    counts = {state: sum(seen.decision.state is state for seen in found) for state in State}
    if sum(counts[state] for state in NOTHING) == len(found):
        return "nothing to do"
    never = sum(seen.decision.state in (State.RUN, State.DEPENDS) and seen.usual is None for seen in found)
    said = {
        f"{counts[State.RUN]} to run"
        + (f", usually {format_duration(certain)} one after the other" if certain else ""): True,
        f"{counts[State.RESTORE]} to restore": counts[State.RESTORE],
        f"{counts[State.DEPENDS]} may follow" + (f", {format_duration(possible)} more" if possible else ""): counts[
            State.DEPENDS
        ],
        f"{never} never ran here": never,
        f"{counts[State.SKIP]} up to date": counts[State.SKIP],
        f"{counts[State.LATER]} not needed": counts[State.LATER],
    }
    return "; ".join(text for text, wanted in said.items() if wanted)


def _json(seen: TaskStatus) -> Json:
    return {
        "task": seen.task.name,
        "action": str(seen.decision.state),
        "on": list[Json](_on(seen)) if seen.decision.state is State.DEPENDS else [],
        "running": running_json(seen.running),
        "reasons": reasons_json(seen.decision.reasons),
        "usual_seconds": _usual(seen),
    }
