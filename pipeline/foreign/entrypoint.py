"""Whether an image's ENTRYPOINT hands over to the command it is given, as far as its words and its script tell.

Only what is plain counts as handing over; whatever is not is taken away, which loses nothing: `tandem-serve` does what
it did. In a container the smoke check `launcher` sees whether the command runs.
"""

import posixpath
import re
from collections.abc import Sequence

SHELLS = {"sh", "bash", "dash", "ash", "ksh"}
WRAPPERS = {"tini", "tini-static", "dumb-init", "catatonit", "docker-init", "env"}
"""Programs that run the command they are given, if they have no other options than these:"""
FLAGS = {"-s", "-g", "-v", "-w", "-c", "-i", "--single-child", "--verbose", "--ignore-environment"}
VALUED = {"-p", "-e", "-r", "--rewrite", "-u", "--unset"}
USERS = {"gosu", "su-exec"}
"""Programs that run the command after a user's name."""
# Of NVIDIA's images; it hands over, by branches.
KNOWN = {"nvidia_entrypoint.sh"}
SHEBANG = re.compile(r"#!\s*(/usr)?/bin/(env\s+)?(ba|da|a|k)?sh\b")
ALL = {'"$@"', '"${@}"', '${1+"$@"}'}
QUOTED = r"""'[^']*'|"(?:[^"\\`$]|\\.|\$(?!\())*\""""
WORD = rf"(?:[^\s#;&|()<>`\"'\\$]|(?<=\S)#|\$(?![(\"'])|{QUOTED})+"
ASSIGNMENT = rf"\w+\+?=(?:{WORD})?"
HEAD = (
    r"(?:export|unset|readonly|source|\.|\[\[?|test|:|true|echo|printf|mkdir|touch|chmod|chown|umask|ulimit|ldconfig)"
    r"(?![^\s;&|<>])"
)
STATEMENT = (
    rf"(?:(?:if|then|elif|else|!)\s+)*(?:{HEAD}(?:\s+{WORD}|\s*(?:<|>>?)&?\s*{WORD})*|{ASSIGNMENT}(?:\s+{ASSIGNMENT})*"
    r"|set(?:\s+[-+]\w*o\s+\w+|\s+[-+]\w+)+|then|else|fi)"
)
STATEMENTS = rf"{STATEMENT}(?:\s*(?:;|&&|\|\|)\s*{STATEMENT})*"
PLAIN = re.compile(rf"(?:{STATEMENTS}\s*;?)?(?:(?:^|\s)\s*#.*)?")
"""A line that may come before: it ends, serves nothing, stays in the folder, and keeps the arguments."""
LAST = re.compile(rf"(?:{STATEMENTS}\s*;\s*)?exec\s(.*)")


def entrypoint_script(entrypoint: Sequence[str]) -> str:
    """The program, by path or name, that ENTRYPOINT runs behind its wrappers and shells; empty if there is none.

    It is what `hands_over` takes the text of, if that is a script.
    """
    words = _unwrapped(entrypoint)
    if words and posixpath.basename(words[0]) in SHELLS:
        options = [word for word in words[1:] if word.startswith(("-", "+"))]
        return "" if "-c" in options else next((word for word in words[1:] if word not in options), "")
    return words[0] if words else ""


def hands_over(entrypoint: Sequence[str], text: str = "") -> bool:
    """Whether ENTRYPOINT plainly runs the command it is given in its own place; `text` is its script's."""
    words = _unwrapped(entrypoint)
    if not words:
        return True
    shell = posixpath.basename(words[0]) in SHELLS
    if shell and "-c" in words:
        # Of the words behind the text, the first is its name.
        inline, *named = words[words.index("-c") + 1 :] or [""]
        return len(named) == 1 and _leads(inline)
    inner = entrypoint_script(entrypoint)
    if not inner or words[-1] != inner:
        return False
    if posixpath.basename(inner) in KNOWN:
        return True
    return (shell or SHEBANG.match(text) is not None) and _leads(text)


def _unwrapped(entrypoint: Sequence[str]) -> list[str]:
    """The words behind wrappers that only run them; a wrapper with any other option stays."""
    words = [] if list(entrypoint) == [""] else list(entrypoint)
    while words:
        name = posixpath.basename(words[0])
        if name in USERS and len(words) > 1:
            words = words[2:]
        elif name in WRAPPERS and (behind := _past_options(words[1:])) is not None:
            words = behind
        else:
            break
    return words


def _past_options(words: list[str]) -> list[str] | None:
    """The words behind options and assignments; None if there is an option that is not known."""
    while words and (words[0].startswith("-") or re.match(r"\w+=", words[0])):
        option, *words = words
        if option == "--":
            break
        if option in VALUED:
            words = words[1:]
        elif option not in FLAGS and option.startswith("-"):
            return None
    return words


def _leads(text: str) -> bool:
    """Whether a script's last line ends as that command, and all before is plain; open blocks would not run at all."""
    joined = re.sub(r"^([^#\n]*)\\\n", r"\1 ", text, flags=re.MULTILINE)
    *before, last = [line for line in map(str.strip, joined.split("\n")) if line] or [""]
    ends = LAST.fullmatch(last)
    behind = _unwrapped(ends[1].split()) if ends else []
    return len(behind) == 1 and behind[0] in ALL and all(map(PLAIN.fullmatch, before))
