"""Whether an image's ENTRYPOINT hands over to the command it is given, as far as its words and its script tell.

Only what is plain counts as handing over; whatever is not is taken away, which loses nothing: `tandem-serve` does what
it did. In a container the smoke check `launcher` sees whether the command runs.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence

SHELLS = {"sh", "bash", "dash", "ash", "ksh"}
WRAPPERS = {"tini", "tini-static", "dumb-init", "catatonit", "docker-init", "env"}
"""Programs that run the command they are given; their options take no word of their own, but for VALUED."""
VALUED = {"tini": ("-p", "-e"), "tini-static": ("-p", "-e"), "dumb-init": ("-r", "--rewrite"), "env": ("-u", "-C")}
USERS = {"gosu", "su-exec"}
"""Programs that run the command after a user's name."""
# Of NVIDIA's images; it hands over, by branches.
KNOWN = {"nvidia_entrypoint.sh"}
SHEBANG = re.compile(r"#!\s*(/usr)?/bin/(env\s+)?(ba|da|a|k)?sh\b")
ALL = {'"$@"', '"${@}"', '${1+"$@"}'}
ENDS = re.compile(r"\s*(?:;;?|&&|\|\||(?<=\s)(?:then|else|do)(?=\s|$))\s*")
"""What stands between two statements of a line, roughly: inside quotes it parts what belongs together."""
OPENS = re.compile(r"(if|case|for|while|until|select|\{|\(|\w+\s*\(\)\s*\{?)(\s|$)")
CLOSES = re.compile(r"(fi|esac|done|\}|\))(\s|$)")
# Statements after which the command is another one, or never comes.
ELSEWHERE = re.compile(
    r"exec\s+(?![\d&<>])|exit\b(?!\s+[1-9$])|(shift|return|eval)\b|set\s+(--|[^-+])|while\s+(true|:)|[\"']?\$[@1{]"
    r"|(vllm|uvicorn|gunicorn|jupyter|tritonserver|sglang|ollama|sshd)\s|python[\d.]*\s.*(vllm|server)|sleep\s+infinity"
)


def script(entrypoint: Sequence[str]) -> str:
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
    inner = script(entrypoint)
    if not inner or words[-1] != inner:
        return False
    if posixpath.basename(inner) in KNOWN:
        return True
    return (shell or SHEBANG.match(text) is not None) and _leads(text)


def _unwrapped(entrypoint: Sequence[str]) -> list[str]:
    """The words behind wrappers that only run them."""
    words = [word for word in entrypoint if word] if list(entrypoint) == [""] else list(entrypoint)
    while words:
        name = posixpath.basename(words[0])
        if name in USERS and len(words) > 1:
            words = words[2:]
        elif name in WRAPPERS:
            words = _past_options(name, words[1:])
        else:
            break
    return words


def _past_options(name: str, words: list[str]) -> list[str]:
    while words and (words[0].startswith("-") or (name == "env" and "=" in words[0])):
        option, *words = words
        if option == "--":
            break
        if option in VALUED.get(name, ()):
            words = words[1:]
    return words


def _leads(text: str) -> bool:
    """Whether a script's last statement, outside of all blocks, is that command, and nothing before leads elsewhere."""
    *before, last = [*_statements(text)] or [""]
    depth = sum(bool(OPENS.match(one)) - bool(CLOSES.match(one)) for one in before)
    return depth == 0 and _is_command(last) and not any(_elsewhere(one) for one in before)


def _statements(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if not line.lstrip().startswith("#"):
            yield from filter(None, map(str.strip, ENDS.split(line)))


def _elsewhere(statement: str) -> bool:
    return ELSEWHERE.match(statement) is not None and not statement.endswith(" &")


def _is_command(statement: str) -> bool:
    words = re.sub(r"\s+\d?[<>]{1,2}&?\s*\S+", "", statement).split()
    behind = _unwrapped(words[1:])
    return words[:1] == ["exec"] and len(behind) == 1 and behind[0] in ALL
