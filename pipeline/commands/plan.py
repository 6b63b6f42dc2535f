"""`./doitw plan`: prints what would run, in order, with the usual durations."""

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
        statuses = list(survey_tasks(graph, select_tasks(graph, words)).values())
        certain, possible = _sum(statuses, State.RUN), _sum(statuses, State.DEPENDS)
        if options["json"]:
            tasks: Json = [_json(status) for status in statuses]
            print_json({"schema": SCHEMA, "tasks": tasks, "seconds": certain, "more_seconds_at_most": possible})
            return Exit.OK
        print("\n".join(format_table([_row(i, status) for i, status in enumerate(statuses, 1)])))
        print(_total(statuses, certain, possible))
        return Exit.OK


def _row(i: int, status: TaskStatus) -> tuple[str, ...]:
    doing = status.decision.state not in NOTHING
    word = _word(status)
    if wants_colour():
        word = f"\x1b[{STATES[status.state][1]}m{word}\x1b[0m"
    usual = _usual(status)
    return (
        f"{i:2}",
        status.task.name,
        word,
        f"usually {format_duration(usual)}" if doing and usual else "",
        _why(status),
    )


def _usual(status: TaskStatus) -> float | None:
    """Returns the usual seconds of a run; None for an earlier result, which is restored sooner."""
    return None if status.decision.state is State.RESTORE else status.usual


def _word(status: TaskStatus) -> str:
    if status.running:
        return f"running in process {status.running.pid}"
    state = status.decision.state
    return f"depends on {', '.join(_on(status))}" if state is State.DEPENDS else WORDS[state]


def _on(status: TaskStatus) -> list[str]:
    """Returns the upstream tasks whose results decide and are not known yet."""
    return [r.input.removeprefix("upstream:") for r in status.decision.reasons if r.new == UNKNOWN]


def _why(status: TaskStatus) -> str:
    """Returns the first reason of the task's own, in short."""
    if status.decision.state in (State.SKIP, State.DEPENDS):
        return ""
    own = [reason for reason in status.decision.reasons if reason.new != UNKNOWN]
    if not own:
        return ""
    said = own[0].input.partition(":")[0] in ("record", "world")
    return (shorten_hashes(own[0].new or "") if said else own[0].input) + (
        f" and {len(own) - 1} more" if own[1:] else ""
    )


def _sum(statuses: Iterable[TaskStatus], state: State) -> float:
    return round(sum(status.usual or 0.0 for status in statuses if status.decision.state is state), 3)


def _total(statuses: list[TaskStatus], certain: float, possible: float) -> str:
    counts = {state: sum(status.decision.state is state for status in statuses) for state in State}
    if sum(counts[state] for state in NOTHING) == len(statuses):
        return "nothing to do"
    never = sum(status.decision.state in (State.RUN, State.DEPENDS) and status.usual is None for status in statuses)
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


def _json(status: TaskStatus) -> Json:
    return {
        "task": status.task.name,
        "action": str(status.decision.state),
        "on": list[Json](_on(status)) if status.decision.state is State.DEPENDS else [],
        "running": running_json(status.running),
        "reasons": reasons_json(status.decision.reasons),
        "usual_seconds": _usual(status),
    }
