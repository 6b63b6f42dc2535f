"""Keeps secrets out of what is written: logs, the screen, messages, reports and copies of other programs' logs.

Whoever comes to know a secret registers it here; whoever writes a text passes it through clean(). The environment of
this process is registered by itself. Which texts are secrets is told by pipeline.core.sensitive.
"""

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from pipeline.core import sensitive

MASK = "***"
SHORTEST = 4
"""A shorter value stands in too many texts by chance."""
COMMON = re.compile(
    "true|false|none|null|auto|default|enabled|disabled|always|never|optional|required|token|basic|bearer"
    "|linux|arm64|amd64|aarch64|x86_64",
    re.IGNORECASE,
)
"""Values that tell nobody anything, whatever the name of their variable says."""
ALWAYS_HIDDEN = 8
"""A shorter value of letters and digits only is hidden as a word, and not as a part of another one."""
SHORTEST_LINE = 16
"""A shorter line of a secret of several lines may be its structure."""
DIGEST = "sha256:[0-9a-f]{12,64}(?![0-9a-f])"
BEFORE_WORD = (
    r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f])"
    # A terminal's colours, as in ESC[0;31m.
    r"|(?<=\[[0-9]m)|(?<=\[[0-9][0-9]m)|(?<=;[0-9]m)|(?<=;[0-9][0-9]m))"
)
AFTER_WORD = "(?![A-Za-z0-9_])"
OUTSIDE_NAME = "(?<![/.-]){}(?![/-]|[.][A-Za-z0-9_])"
"""Beside these, a word of small letters is a part of a path or of a name of ours."""


class Redactor:
    """Some secrets, in every form in which they may be written, and how a text is cleaned of them."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._pattern: tuple[re.Pattern[str], re.Pattern[bytes]] | None = None
        self._lock = threading.Lock()

    def register(self, secrets: Iterable[str]) -> None:
        """Counts these values as secrets, but for those that are too short or too common to be one."""
        new = {form for secret in secrets for form in _forms(secret)} - self._forms
        if new:
            with self._lock:
                self._forms |= new
                self._pattern = None

    def clean(self, text: str) -> str:
        """Returns a text with *** in place of every secret."""
        text = sensitive.hide_urls(text, MASK)
        patterns = self._patterns()
        if patterns is None:
            return text
        # Again: a *** may make a secret of what stands beside it. Each round makes the text shorter.
        while (cleaned := patterns[0].sub(lambda match: match["digest"] or MASK, text)) != text:
            text = cleaned
        return text

    def clean_bytes(self, raw: bytes) -> bytes:
        """Does what clean() does, with a file whose encoding need not be known."""
        raw = sensitive.hide_urls(raw.decode("latin-1"), MASK).encode("latin-1")
        patterns = self._patterns()
        if patterns is None:
            return raw
        while (cleaned := patterns[1].sub(lambda match: match["digest"] or MASK.encode(), raw)) != raw:
            raw = cleaned
        return raw

    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[bytes]] | None:
        with self._lock:
            if self._pattern is None and self._forms:
                forms = sorted(self._forms, key=lambda form: (-len(form), form))
                text = "|".join([f"(?P<digest>{DIGEST})", *map(_form_pattern, forms)])
                self._pattern = re.compile(text), re.compile(text.encode(errors="surrogateescape"))
            return self._pattern


def _form_pattern(form: str) -> str:
    """Returns the pattern of what is hidden for one form of a secret."""
    if len(form) >= ALWAYS_HIDDEN or not (form.isascii() and form.isalnum()):
        return re.escape(form)
    word = BEFORE_WORD + form + AFTER_WORD
    return OUTSIDE_NAME.format(word) if form.isalpha() and form.islower() else word


def _forms(secret: str) -> Iterator[str]:
    """Yields the ways in which a secret is spelled: plain, in JSON, in URLs, in shells, in Python; long lines too."""
    from urllib.parse import quote, quote_plus, unquote

    for value in {secret, secret.strip(), *filter(_is_secret_line, map(str.strip, secret.splitlines()))}:
        if not _hideable(value):
            continue
        forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
        encodable = value.encode(errors="replace")
        forms |= {quote(encodable), quote(encodable, safe=""), quote_plus(encodable), unquote(value)}
        forms |= {value.replace("'", "'\"'\"'"), value.replace("'", "''"), value.replace("'", "\\'")}
        yield from filter(_hideable, forms)


def _is_secret_line(line: str) -> bool:
    return len(line) >= SHORTEST_LINE and not re.search(r"[:\s]", line)


def _hideable(value: str) -> bool:
    return len(value) >= SHORTEST and not COMMON.fullmatch(value) and value.strip("*") != ""


_process = Redactor()
_environment_read = threading.Event()


def register(*secrets: str) -> None:
    """Counts values as secrets from now on, for this whole process."""
    _process.register(secrets)


def register_login(user: str, password: str) -> None:
    """Counts a password as a secret, and user and password as an HTTP header has them."""
    import base64

    register(password, base64.b64encode(f"{user}:{password}".encode()).decode())


def register_in(value: Any, name: str = "") -> None:
    """Counts the secrets in a configuration as such: mappings, lists and texts, of which `name` is the key."""
    register(*sensitive.value_secrets(value, name))


def register_environment(env: Mapping[str, str]) -> None:
    """Counts the secrets of an environment as such: values behind names that say so, and passwords in URLs."""
    register_in({name: value for name, value in env.items() if not _is_path(value)})


def clean(text: str) -> str:
    """Returns a text with *** in place of every secret that this process knows."""
    _read_environment()
    return _process.clean(text)


def clean_bytes(raw: bytes) -> bytes:
    """Does what clean() does, with a file whose encoding need not be known."""
    _read_environment()
    return _process.clean_bytes(raw)


def clean_json(value: Any) -> Any:
    """Returns a JSON value whose texts are cleaned, at any depth."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean_json(key): clean_json(inner) for key, inner in value.items()}
    return [clean_json(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def forget() -> None:
    """Forgets every secret; the environment is read again. For tests, each of which has secrets of its own."""
    global _process
    _process = Redactor()
    _environment_read.clear()


class CleanStream:
    """A text stream that passes on what is written to it without secrets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text, cleaned; returns the length of what was given."""
        self._stream.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes some texts, each cleaned."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _read_environment() -> None:
    if not _environment_read.is_set():
        register_environment(os.environ)
        _environment_read.set()  # not before: another thread would write what is not registered yet


def _is_path(value: str) -> bool:
    """Returns whether a value names a file or folder that exists: then it is not the secret, whatever its name says."""
    return value.startswith("/") and os.path.lexists(value)
