"""`./doitw why`: what a task would do, and which input or which look at the world says so."""

from collections import Counter
from collections.abc import Iterator, Mapping

from pipeline.commands.base import GraphCommand, Options, print_json
from pipeline.commands.survey import SCHEMA, TaskStatus, claim_states, reasons_json, running_json, survey_tasks
from pipeline.commands.text import counted, format_duration, shorten_hashes
from pipeline.core.errors import Exit
from pipeline.core.tables import format_table
from pipeline.graph.decide import Reason, State
from pipeline.graph.graph import Graph
from pipeline.graph.selection import select_tasks
from pipeline.graph.task import Json

MAX_LISTED = 8
VERDICTS = {
    State.SKIP: "is up to date",
    State.RESTORE: "would be restored from an earlier result",
    State.RUN: "would run",
    State.DEPENDS: "would run, unless what it needs comes out as before",
    State.LATER: "has a result, and would make what is gone of it if a task had to read it",
}
KINDS = {
    "file": "file", "param": "parameter", "tool": "tool", "code": "module", "upstream": "upstream result"
}  # fmt: skip


class WhyCommand(GraphCommand):
    """doit's plugin command `why`."""

    name = "why"
    doc_purpose = "show what a task would do, and why: each input that differs, old and new"
    doc_usage = "[TASK ...]"
    doc_description = "For a task that is up to date: what was compared, and what was asked of the world."

    def answer(self, graph: Graph, options: Options, words: list[str]) -> int:
        """Print the tasks asked about, then everything upstream of them that is not up to date."""
        names = select_tasks(graph, words)
        statuses = survey_tasks(graph, names)
        asked = {name: status for name, status in statuses.items() if name in names or not names}
        rest = {n: s for n, s in statuses.items() if n not in asked and s.decision.state is not State.SKIP}
        if options["json"]:
            print_json(
                {
                    "schema": SCHEMA,
                    "tasks": [_json(status, asked=name in asked) for name, status in (asked | rest).items()],
                }
            )
        else:
            for name, status in asked.items():
                print("\n".join(_text(name, status, "")))
            for name, status in rest.items():
                print("\n".join(_text(name, status, ", upstream")))
        return Exit.OK


def _json(status: TaskStatus, *, asked: bool) -> Json:
    decision = status.decision
    return {
        "task": decision.task,
        "asked": asked,
        "state": str(decision.state),
        "running": running_json(status.running),
        "fingerprint": decision.fingerprint,
        "compared": decision.compared.fingerprint if decision.compared else None,
        "reasons": reasons_json(decision.reasons),
        "inputs": dict(decision.inputs),
        "claims": [{"kind": kind, "what": what, "broken": why} for kind, what, why in claim_states(status)],
    }


def _text(name: str, status: TaskStatus, where: str) -> Iterator[str]:
    decision = status.decision
    yield f"{name}{where} {VERDICTS[decision.state]}" + (":" if decision.reasons else "")
    if status.running:
        yield f"  it is running now, in process {status.running.pid}"
    yield from (f"  {line}" for line in format_table([_row(reason) for reason in _shown_reasons(decision.reasons)]))
    if decision.state is State.SKIP:
        yield from _compared(status)


def _shown_reasons(reasons: tuple[Reason, ...]) -> list[Reason]:
    """The reasons; those that only say that nothing is known yet add nothing to there being no result."""
    if any(reason.input == "record" and reason.old is None for reason in reasons):
        return [reason for reason in reasons if reason.input == "record"]
    return list(reasons)


def _row(reason: Reason) -> tuple[str, str]:
    if reason.input == "record" and reason.old is None:
        return reason.input, reason.new or ""
    old = "not there" if reason.old is None else shorten_hashes(reason.old)
    return reason.input, f"{old} → {'gone' if reason.new is None else shorten_hashes(reason.new)}"


def _compared(status: TaskStatus) -> Iterator[str]:
    """For a skip: all inputs but long lists of files and modules, and every claim."""
    decision = status.decision
    if decision.record:
        took = f", took {format_duration(status.seconds)}" if status.seconds is not None else ""
        yield f"  result {decision.record.digest[:12]}… of fingerprint {decision.record.fingerprint[:12]}…{took}"
    kinds = Counter(key.partition(":")[0] for key in decision.inputs)
    counts = ", ".join(counted(count, KINDS.get(kind, kind)) for kind, count in kinds.items())
    whole = counted(len(decision.inputs), "input is as it was", "inputs are as they were")
    yield f"  {whole}: {counts or 'it has none'}"
    yield from (f"    {line}" for line in format_table(list(_listed(decision.inputs, kinds))))
    for kind, what, _ in claim_states(status):
        yield f"  the world holds: {kind} {shorten_hashes(_plain(what))}"


def _listed(inputs: Mapping[str, str], kinds: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for key, value in sorted(inputs.items()):
        if kinds[key.partition(":")[0]] <= MAX_LISTED:
            yield key, shorten_hashes(value)


def _plain(what: Json) -> str:
    if isinstance(what, dict):
        return " ".join(f"{key}={_plain(value)}" for key, value in what.items())
    return str(what)
