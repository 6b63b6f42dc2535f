"""Decides whether an image's ENTRYPOINT hands over to the command that it is given.

Only what is plain from its words and its script counts as handing over; any other ENTRYPOINT is cleared. Clearing loses
nothing, since `tandem-serve` then does what it did. What is kept, the smoke check `launcher` tries in a container.
"""

import posixpath
import re
from collections.abc import Sequence

SHELLS = {"sh", "bash", "dash", "ash", "ksh"}
WRAPPERS = {"tini", "tini-static", "dumb-init", "catatonit", "docker-init"}
"""Init programs: each runs the command that it is given as its child, and passes signals on."""
WRAPPER_FLAGS = {"--", "-s", "-g", "-v", "-vv", "-vvv", "-w", "-c", "--single-child", "--verbose"}
WRAPPER_OPTIONS = {"-p", "-e", "-r", "--rewrite"}
"""The options of WRAPPERS that take the next word as their value."""
SCRIPTS = {"nvidia_entrypoint.sh"}
"""Scripts that are known to hand over, though not plainly: this one of NVIDIA's images does so in branches."""
SHEBANG = re.compile(r"#!\s*(/usr)?/bin/(env\s+)?(ba|da|a|k)?sh\b")
VALUE = r"""(?:"[^"`(\\]*"|'[^'\\]*'|[^\s"'`;&|<>()\\]*)"""
SETTING = re.compile(
    rf"#.*|set -(?:[a-z]*o pipefail|[a-np-z]+)|(export )?\w+=({VALUE})|export \w+|(\.|source) [^\s\"'`;&|<>()\\$]+"
)
"""A line that may come before the last: it only sets something, and serves nothing and stays in the folder."""


def entrypoint_script(entrypoint: Sequence[str]) -> str:
    """Returns the script or program, by path or name, that is all of ENTRYPOINT behind its wrappers; else ""."""
    words = _without_wrappers(entrypoint)
    if len(words) == 2 and posixpath.basename(words[0]) in SHELLS:
        words = words[1:]
    return words[0] if len(words) == 1 and not words[0].startswith("-") else ""


def hands_over(entrypoint: Sequence[str], text: str = "") -> bool:
    """Returns whether ENTRYPOINT plainly runs the command that it is given, in WORKDIR with its arguments unchanged.

    `text` is the text of entrypoint_script(), if that is a script. It must end in the line `exec "$@"`, and before it
    have comments and settings only.
    """
    words = _without_wrappers(entrypoint)
    if not words:
        return True
    script = entrypoint_script(entrypoint)
    if posixpath.basename(script) in SCRIPTS:
        return True
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    is_shell = posixpath.basename(words[0]) in SHELLS or SHEBANG.match(text) is not None
    return bool(script) and is_shell and lines[-1:] == ['exec "$@"'] and all(map(SETTING.fullmatch, lines[:-1]))


def _without_wrappers(entrypoint: Sequence[str]) -> list[str]:
    """Returns the words behind known wrappers. A wrapper with an option that is not known stays."""
    words = [] if list(entrypoint) == [""] else list(entrypoint)
    while words and posixpath.basename(words[0]) in WRAPPERS:
        rest = words[1:]
        while rest and rest[0].startswith("-"):
            if rest[0] not in WRAPPER_FLAGS | WRAPPER_OPTIONS:
                return words
            rest = rest[2:] if rest[0] in WRAPPER_OPTIONS else rest[1:]
        words = rest
    return words
