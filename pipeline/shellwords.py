"""The words and operators of a shell script, as they are written."""

OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", ";", "&", "|", "(", ")", "\n")


class UnreadableError(Exception):
    """The text is no shell script, or one beyond what is understood here."""


def tokens(text: str) -> list[str]:
    """Words and operators; comments are left out, here-documents too. Raises UnreadableError for an open quote."""
    found: list[str] = []
    waiting: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in " \t\r":
            at += 1
        elif text[at] == "#":
            at = _line_end(text, at)
        elif operator := next((o for o in OPERATORS if text.startswith(o, at)), ""):
            found.append(operator)
            at += len(operator)
            if operator == "\n":
                at = _past_heredocs(text, at, waiting)
        else:
            end = _word_end(text, at)
            word = text[at:end]
            if word.lstrip("0123456789").startswith("<<") and "<<<" not in word:
                at, end = _heredoc(text, at, end, waiting)
            else:
                found.append(word)
            at = end
    return found


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _heredoc(text: str, at: int, end: int, waiting: list[str]) -> tuple[int, int]:
    """Note the mark that ends a here-document; it may stand apart from its `<<`."""
    mark = text[at:end].lstrip("0123456789").lstrip("<").lstrip("-")
    if not mark:
        while end < len(text) and text[end] in " \t":
            end += 1
        start, end = end, _word_end(text, end)
        mark = text[start:end]
    waiting.append(mark.strip("'\"\\"))
    return at, end


def _past_heredocs(text: str, at: int, waiting: list[str]) -> int:
    while waiting:
        mark = waiting.pop(0)
        while at < len(text):
            end = _line_end(text, at)
            line, at = text[at:end], end + 1
            if line.strip() == mark:
                break
    return at


def _word_end(text: str, at: int) -> int:
    """Where the word that begins at `at` ends. Raises UnreadableError."""
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
        elif char in "'\"`":
            at = _closing(text, at)
        elif text[at : at + 2] in {"$(", "${", "<(", ">("}:
            at = _closing(text, at + 1)
        elif char == "(" and text[at - 1 : at] in {"@", "?", "*", "+", "!", "="}:
            at = _closing(text, at)
        elif char == "&" and (text[at - 1 : at] in {"<", ">"} or text[at + 1 : at + 2] == ">"):
            at += 1
        elif char in " \t\r\n;&|()":
            return at
        else:
            at += 1
    return min(at, len(text))


def _closing(text: str, at: int) -> int:
    """The place after the quote, backquote or bracket that closes the one at `at`. Raises UnreadableError."""
    opened = text[at]
    closes = {"(": ")", "{": "}"}.get(opened, opened)
    at += 1
    while at < len(text):
        char = text[at]
        if char == closes:
            return at + 1
        if char == "\\" and opened != "'":
            at += 2
        elif opened == "'" or (opened in '"`' and text[at : at + 2] not in {"$(", "${"}):
            at += 1
        elif (char in "'\"`" and opened != '"') or (char in "({" and (opened == char or text[at - 1 : at] == "$")):
            at = _closing(text, at)
        else:
            at += 1
    raise UnreadableError(f"an open {opened}")
