"""Names of Python distributions."""

import re


def normalised_name(name: str) -> str:
    """A distribution's name as indexes and locks write it."""
    return re.sub(r"[-_.]+", "-", name).lower()
