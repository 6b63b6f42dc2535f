"""Names of Python distributions."""

import re


def normalised_name(name: str) -> str:
    """Returns a distribution's name in the form that indexes and locks use (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
