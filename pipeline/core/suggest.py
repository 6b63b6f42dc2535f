"""Finds the name that a person most likely meant."""

import difflib
from collections.abc import Iterable


def closest_name(name: str, known: Iterable[str]) -> str:
    """Returns the known name that is most like `name`; "" if none is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return near[0] if near else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns a hint that names the closest known name, or else all of them."""
    known = list(known)
    if near := closest_name(name, known):
        return f"did you mean {near!r}?"
    return "known here: " + ", ".join(sorted(known)) if known else "none is defined"
