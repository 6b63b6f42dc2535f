"""The name that a person most likely meant."""

import difflib
from collections.abc import Iterable


def closest_name(name: str, known: Iterable[str]) -> str:
    """The known name that was most likely meant; empty if none is like it."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return near[0] if near else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name, or all of them."""
    known = list(known)
    if near := closest_name(name, known):
        return f"did you mean {near!r}?"
    return "known here: " + ", ".join(sorted(known)) if known else "none is defined"
