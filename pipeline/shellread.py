"""Reads a shell script as far as it takes to follow one command through it: words, commands, branches, functions.

It knows what wrappers use. Whatever it does not know, it refuses: whoever reads with it must then assume the worst.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.shellwords import UnreadableError, tokens

ENDS = {"then", "do", "done", "fi", "else", "elif", "esac", "}"}


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: its words as they are written; `apart` if it runs beside the script (pipe, `&`, subshell)."""

    words: tuple[str, ...]
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands joined by && and ||; `joins[i]` stands before `parts[i + 1]`."""

    parts: tuple["Part", ...]
    joins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """An if: conditions with what they lead to, tried in order; an else is a condition without commands."""

    branches: tuple[tuple[tuple["Part", ...], tuple["Part", ...]], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A case: the word, and for each arm its patterns and commands."""

    word: str
    arms: tuple[tuple[tuple[str, ...], tuple["Part", ...]], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A for, while, until or select: what it asks each time, and what it does."""

    kind: str
    asks: tuple["Part", ...]
    does: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in braces, or a function's body if it has a name."""

    does: tuple["Part", ...]
    name: str = ""


Part = Command | Chain | Choice | Case | Loop | Group


def parse(text: str) -> tuple[Part, ...]:
    """The script's commands, in order. Raises UnreadableError."""
    reader = _Reader(tokens(text.replace("\\\n", " ")))
    parts = reader.sequence()
    if reader.left():
        raise UnreadableError(f"{reader.peek()!r} out of place")
    return parts


class _Reader:
    """A recursive descent over the tokens."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = given
        self._at = 0

    def left(self) -> bool:
        return self._at < len(self._given)

    def peek(self) -> str:
        return self._given[self._at] if self.left() else ""

    def take(self, wanted: str = "") -> str:
        got = self.peek()
        if not self.left() or (wanted and got != wanted):
            raise UnreadableError(f"{got!r} where {wanted or 'a command'} should be")
        self._at += 1
        return got

    def sequence(self) -> tuple[Part, ...]:
        """Commands up to a word that ends a block."""
        parts: list[Part] = []
        while True:
            while self.peek() in {";", "\n"}:
                self.take()
            if not self.left() or self.peek() in ENDS or self.peek() in {")", ";;", ";&", ";;&"}:
                return tuple(parts)
            parts.append(self._chain())

    def _chain(self) -> Part:
        parts, joins = [self._piped()], []
        while self.peek() in {"&&", "||"}:
            joins.append(self.take())
            self._newlines()
            parts.append(self._piped())
        if self.peek() == "&":
            self.take()
            return Command(("&",), apart=True)
        return Chain(tuple(parts), tuple(joins)) if joins else parts[0]

    def _newlines(self) -> None:
        while self.peek() == "\n":
            self.take()

    def _piped(self) -> Part:
        part, piped = self._one(), False
        while self.peek() in {"|", "|&"}:
            piped = bool(self.take())
            self._newlines()
            self._one()
        return Command(("|",), apart=True) if piped else part

    def _one(self) -> Part:
        word = self.peek()
        if word == "if":
            return self._if()
        if word == "case":
            return self._case()
        if word in {"for", "while", "until", "select"}:
            return self._loop()
        if word in {"{", "function"} or self._given[self._at + 1 : self._at + 3] == ["(", ")"]:
            return self._group()
        if word == "(":
            return self._subshell()
        return self._simple()

    def _if(self) -> Choice:
        branches = []
        while self.peek() in {"if", "elif"}:
            self.take()
            asked = self.sequence()
            self.take("then")
            branches.append((asked, self.sequence()))
        if self.peek() == "else":
            self.take()
            branches.append(((), self.sequence()))
        self.take("fi")
        self._redirected()
        return Choice(tuple(branches))

    def _case(self) -> Case:
        self.take("case")
        word = self.take()
        self._newlines()
        self.take("in")
        arms = []
        self._newlines()
        while self.peek() != "esac":
            if self.peek() == "(":
                self.take()
            patterns = [self.take()]
            while self.peek() == "|":
                self.take()
                patterns.append(self.take())
            self.take(")")
            arms.append((tuple(patterns), self.sequence()))
            if self.peek() in {";&", ";;&"}:
                raise UnreadableError("a case arm that falls through")
            if self.peek() == ";;":
                self.take()
            self._newlines()
        self.take("esac")
        return Case(word, tuple(arms))

    def _loop(self) -> Loop:
        kind = self.take()
        asks: tuple[Part, ...] = ()
        if kind in {"for", "select"}:
            while self.peek() != "do":
                self.take()
        else:
            asks = self.sequence()
        self.take("do")
        does = self.sequence()
        self.take("done")
        self._redirected()
        return Loop(kind, asks, does)

    def _group(self) -> Group:
        name = ""
        if self.peek() == "function":
            self.take()
        if self.peek() != "{":
            name = self.take()
            if self.peek() == "(":
                self.take()
                self.take(")")
            self._newlines()
        self.take("{")
        does = self.sequence()
        self.take("}")
        self._redirected()
        return Group(does, name)

    def _subshell(self) -> Command:
        self.take("(")
        if self.peek() == "(":
            depth = 1
            while depth:
                depth += {"(": 1, ")": -1}.get(self.take(), 0)
        else:
            self.sequence()
            self.take(")")
        self._redirected()
        return Command(("(",), apart=True)

    def _redirected(self) -> None:
        while self.left() and self.peek().lstrip("0123456789&")[:1] in {"<", ">"}:
            if self.take().lstrip("0123456789&") in {"<", ">", ">>", "<<<", ">&"}:
                self.take()

    def _simple(self) -> Command:
        words: list[str] = []
        ends = {";", "&", "|", "|&", "&&", "||", "\n", ")", ";;", ";&", ";;&"}
        if self.peek() == "[[":
            while self.peek() != "]]":
                words.append(self.take())
            return Command((*words, self.take("]]")))
        while self.left() and self.peek() not in ends:
            before = self._at
            self._redirected()
            if self._at == before:
                words.append(self.take())
        return Command(tuple(words))
