"""Whether an image's ENTRYPOINT hands over to the command it is given, as far as its words and its script tell.

The script is followed with the commands that launchers give (launcher contract 2.1, 2.2). A branch that hangs on
something unknown must end well either way; what is not understood counts as not handing over.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase

from pipeline.shellread import Case, Chain, Choice, Command, Group, Loop, Part, parse
from pipeline.shellwords import UnreadableError

SHELLS = {"sh", "bash", "dash", "ash", "ksh"}
WRAPPERS = {"tini", "tini-static", "dumb-init", "catatonit", "docker-init", "env"}
"""Programs that run the command they are given; their options take no word of their own, but for VALUED."""
VALUED = {"tini": ("-p", "-e"), "tini-static": ("-p", "-e"), "dumb-init": ("-r", "--rewrite"), "env": ("-u", "-C")}
USERS = {"gosu", "su-exec"}
"""Programs that run the command after a user's name."""
# Of NVIDIA's images; it hands over, and is known by name where its text was not read.
KNOWN = {"nvidia_entrypoint.sh"}
SERVERS = re.compile(r"^(vllm|uvicorn|gunicorn|jupyter|jupyter-lab|tritonserver|sglang|ollama|sshd)$")
SHEBANG = re.compile(r"#!\s*(/usr)?/bin/(env\s+)?(ba|da|a|k)?sh\b")
COMMANDS = (
    ("sleep", "infinity"),
    ("./run-cluster-node.sh", "--role", "head", "--host-ip", "10.0.0.1"),
    ("bash", "-c", "exec ./run-cluster-node.sh"),
)
ALL = {'"$@"', '"${@}"', '${1+"$@"}', '"${@:1}"'}
FLIPPED = {"!=": "=", "-ne": "-eq", "-lt": "-ge", "-le": "-gt"}


class _End(Enum):
    """Where following a command leads: on, to the command that was given, to anything else, to an error."""

    ON = "on"
    HANDED = "handed"
    LOST = "lost"
    FAILED = "failed"


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
    """Whether ENTRYPOINT runs the command it is given in its own place, whichever that is; `text` is its script's."""
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
    if not text:
        return posixpath.basename(inner) in KNOWN
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
    """Whether a script with this text ends as each of the commands that it is called with."""
    try:
        parts = parse(text)
    except UnreadableError:
        return False
    return all(_Follower(command, parts).follow(parts) is _End.HANDED for command in COMMANDS)


class _Follower:
    """Follows one command through a script that is given it as its arguments."""

    def __init__(self, arguments: Sequence[str], parts: Sequence[Part]) -> None:
        self._arguments = tuple(arguments)
        self._functions: Mapping[str, Group] = {part.name: part for part in _groups(parts) if part.name}
        self._inside: list[str] = []

    def follow(self, parts: Sequence[Part]) -> _End:
        for part in parts:
            end = self._one(part)
            if end is not _End.ON:
                return end
        return _End.ON

    def _one(self, part: Part) -> _End:
        match part:
            case Command():
                return self._command(part)
            case Chain():
                return self._chain(part)
            case Choice():
                return self._choice(part.branches)
            case Case():
                return self._case(part)
            case Loop():
                return self._loop(part)
            case Group():
                return _End.ON if part.name else self.follow(part.does)

    def _command(self, command: Command) -> _End:
        words = list(command.words)
        while words and re.match(r"\w+\+?=", words[0]):
            words = words[1:]
        if command.apart or not words:
            return _End.ON
        name, rest = words[0], words[1:]
        if name == "exec":
            return self._exec(rest)
        if name in {"exit", "return"}:
            return _End.FAILED if rest and re.fullmatch("[1-9][0-9]*|\\$\\?", rest[0]) else _End.LOST
        if name == "shift" or (name == "set" and ("--" in rest or not rest[:1] or rest[0][0] not in "-+")):
            return _End.LOST
        if name in self._functions:
            return self._call(name, rest)
        return _End.LOST if self._stays(name, rest) else _End.ON

    def _exec(self, words: list[str]) -> _End:
        if not words:
            return _End.ON
        behind = _unwrapped(words)
        handed = len(behind) == 1 and behind[0] in ALL
        return _End.HANDED if handed and not self._inside else _End.LOST

    def _call(self, name: str, rest: list[str]) -> _End:
        if name in self._inside:
            return _End.LOST
        own = len(rest) == 1 and rest[0] in ALL
        if not own:
            self._inside.append(name)
        end = self.follow(self._functions[name].does)
        if not own:
            self._inside.pop()
        return end

    def _stays(self, name: str, rest: list[str]) -> bool:
        """Whether this command never comes back: a server in the foreground, or the given command as a child."""
        program = posixpath.basename(name.strip("'\""))
        python = re.fullmatch(r"python[\d.]*", program) is not None
        return (
            name in {*ALL, '"$1"', "$@", "$1", "eval"}
            or SERVERS.match(program) is not None
            or (python and any("vllm" in word or "server" in word for word in rest))
            or (program == "sleep" and "infinity" in rest)
        )

    def _chain(self, chain: Chain) -> _End:
        truth = self._truth(chain.parts[0])
        end = self._one(chain.parts[0])
        for join, part in zip(chain.joins, chain.parts[1:], strict=True):
            if end is not _End.ON:
                return end
            if truth is not None and truth != (join == "&&"):
                continue
            after = self._one(part)
            end = after if truth is not None else _maybe(after)
            truth = self._truth(part) if truth is not None else None
        return end

    def _choice(self, branches: Sequence[tuple[tuple[Part, ...], tuple[Part, ...]]]) -> _End:
        if not branches:
            return _End.ON
        (asked, does), *rest = branches
        truth = True if not asked else self._truth(asked[-1]) if len(asked) == 1 else None
        if truth is not None:
            return self.follow(does) if truth else self._choice(rest)
        return _either(self.follow(does), self._choice(rest))

    def _case(self, case: Case) -> _End:
        word = self._value(case.word)
        end = _End.ON
        for patterns, does in case.arms:
            if word is None:
                end = _either(end, self.follow(does))
            elif any(fnmatchcase(word, re.sub("[\"']", "", pattern)) for pattern in patterns):
                return self.follow(does)
        return end

    def _loop(self, loop: Loop) -> _End:
        for_ever = loop.kind == "while" and loop.asks in {(Command(("true",)),), (Command((":",)),)}
        return _End.LOST if for_ever else _maybe(self.follow(loop.does))

    def _truth(self, part: Part) -> bool | None:
        """Whether a test holds for the command that was given; None if that cannot be told."""
        if not isinstance(part, Command) or part.apart or not part.words or self._inside:
            return None
        words, wanted = list(part.words), True
        while words[0] == "!":
            words, wanted = words[1:] or [""], not wanted
        if words[0] in {"true", ":"}:
            return wanted
        if words[0] == "false":
            return not wanted
        if words[0] not in {"[", "[[", "test"} or (words[0] != "test" and len(words) < 3):
            return None
        inside = words[1:] if words[0] == "test" else words[1:-1]
        while inside[:1] == ["!"]:
            inside, wanted = inside[1:], not wanted
        holds = self._test(inside, pattern=words[0] == "[[")
        return None if holds is None else holds == wanted

    def _test(self, words: list[str], *, pattern: bool) -> bool | None:
        if len(words) == 2 and words[0] in {"-n", "-z"}:
            value = self._value(words[1])
            return None if value is None else bool(value) == (words[0] == "-n")
        if len(words) != 3:
            return None
        left, how, right = self._value(words[0]), words[1], self._value(words[2])
        if left is None or right is None:
            return None
        if how in FLIPPED:
            other = _compare(left, FLIPPED[how], right, pattern=pattern)
            return None if other is None else not other
        return _compare(left, how, right, pattern=pattern)

    def _value(self, word: str) -> str | None:
        """What a word stands for; None if that cannot be told."""
        if self._inside and "$" in word:
            return None
        bare = word.replace('"', "")
        arguments = self._arguments
        if bare in {"$#", "${#}"}:
            return str(len(arguments))
        if bare in {"$@", "$*", "${@}", "${*}"}:
            return " ".join(arguments)
        if found := re.fullmatch(r"\$(?:(\d)|\{(\d)(?::?[-+?][^}]*)?\})", bare):
            at = int(found[1] or found[2]) - 1
            return arguments[at] if 0 <= at < len(arguments) else None
        if found := re.fullmatch(r"\$\{1#(-+)\}", bare):
            return arguments[0].removeprefix(found[1])
        if found := re.fullmatch(r"\$\{1:0:(\d)\}", bare):
            return arguments[0][: int(found[1])]
        return None if re.search(r"[$`\\]", bare) else bare.replace("'", "")


def _groups(parts: Sequence[Part]) -> Iterator[Group]:
    for part in parts:
        if isinstance(part, Group):
            yield part
            yield from _groups(part.does)


def _compare(left: str, how: str, right: str, *, pattern: bool) -> bool | None:
    if how in {"=", "=="}:
        return fnmatchcase(left, right) if pattern else left == right
    if how in {"-eq", "-gt", "-ge"} and left.isdigit() and right.isdigit():
        one, other = int(left), int(right)
        return {"-eq": one == other, "-gt": one > other, "-ge": one >= other}[how]
    return None


def _maybe(end: _End) -> _End:
    """What a part that may or may not run leads to: the rest must hand over too; an error is not the usual way."""
    return _End.LOST if end is _End.LOST else _End.ON


def _either(one: _End, other: _End) -> _End:
    if _End.LOST in (one, other):
        return _End.LOST
    if one is other:
        return one
    usual = {one, other} - {_End.FAILED}
    return usual.pop() if len(usual) == 1 else _End.ON
