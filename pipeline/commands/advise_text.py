"""The output of `./doitw advise`: a table and verdicts for people, or JSON."""

import textwrap
from collections.abc import Sequence

from pipeline.commands.survey import SCHEMA
from pipeline.commands.text import shorten_hashes
from pipeline.core.tables import format_table
from pipeline.foreign.combinations import Combination
from pipeline.foreign.comparison import (
    Side,
    comparison_rows,
    heads_first,
    prediction_heads,
    registry_differences,
    registry_entries,
)
from pipeline.graph.task import Json

MAX_TABLE_ENTRIES = 16  # registry entries that the table shows
TEXT_COLUMNS = 118


def advice_text(
    model: Side, cluster: Side, architectures: Sequence[str], found: Sequence[Combination], written: str
) -> list[str]:
    """Returns the lines for people."""
    names = _about(model, cluster, architectures)
    head = ("", "model_from", "cluster_from")
    lines = [
        f"model_from    {shorten_hashes(model.reference)}",
        f"cluster_from  {shorten_hashes(cluster.reference)}",
        "",
        *format_table(
            [head, *comparison_rows(model, cluster), *registry_entries(model, cluster, names[:MAX_TABLE_ENTRIES])]
        ),
    ]
    if len(names) > MAX_TABLE_ENTRIES:
        lines.append(f"{len(names) - MAX_TABLE_ENTRIES} more architectures are listed with --json")
    for title, side in (("model_from", model), ("cluster_from", cluster)):
        lines += [f"{title}: {line}" for line in registry_differences(side)]
    for one in found:
        lines += ["", f"{one.outcome.value}: {one.title}"]
        for said in one.says:
            lines += textwrap.wrap(
                shorten_hashes(said), TEXT_COLUMNS, initial_indent="  ", subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return [*lines, *(["", f"written: {written}"] if written else [])]


def advice_json(
    model: Side, cluster: Side, architectures: Sequence[str], found: Sequence[Combination], written: str
) -> Json:
    """Returns the value for --json."""
    names = _about(model, cluster, architectures)
    brings: list[Json] = [
        dict(zip(("what", "model", "cluster"), row, strict=True)) for row in comparison_rows(model, cluster)
    ]
    listed: list[Json] = [
        dict(zip(("architecture", "model", "cluster"), row, strict=True))
        for row in registry_entries(model, cluster, names)
    ]
    verdicts: list[Json] = [
        {
            "combination": one.key,
            "title": one.title,
            "outcome": one.outcome.value,
            "says": list(one.says),
            "base": one.base,
        }
        for one in found
    ]
    return {
        "schema": SCHEMA,
        "model_from": model.reference,
        "cluster_from": cluster.reference,
        "wanted": list(architectures),
        "brings": brings,
        "registry": listed,
        "differences": list(registry_differences(model)),
        "combinations": verdicts,
        "written": written,
    }


def _about(model: Side, cluster: Side, architectures: Sequence[str]) -> list[str]:
    """Returns the wanted architectures and those of their prediction heads that a side knows; pairs first."""
    known = model.knows | cluster.knows
    own = [entry for entries_ in prediction_heads(architectures, known).values() for entry in entries_]
    return heads_first([*architectures, *own], known)
