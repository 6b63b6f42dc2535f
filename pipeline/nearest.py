"""The name that a person most likely meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known here: " + ", ".join(sorted(known)) if known else "none is defined"
