"""Tells which texts are secrets by where they stand: behind a name that says so, or before the @ of a URL."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SECRET_WORD = re.compile(
    ".*(?:(?<!mon)(?<!^p)key|token|secret|password|passwd|passphrase|credential)s?|.*(?:auth|authorization|pwd)"
    "|creds|pw|cookie|jwt"
)
"""A word of a name that announces a secret. TOKENIZERS_PARALLELISM has none, nor has NCCL_IB_PKEY."""
STRONG_WORD = re.compile(".*(?:password|passwd|passphrase|secret|credential|pwd|apikey)s?|pass|pw")
"""A word of a name that makes a secret of any value, even of a number."""
HARMLESS_END = re.compile(
    "path|file|dir|folder|home|store|mode|type|kind|provider|backend|sock|socket|names?|user|username|ur[li]|host|port"
    "|endpoint|address|server|realm|scheme|header|command|program|helper|require|required|enabled|disabled|timeout|ttl"
    "|size|length|limit|count|number|format|algorithm|threshold|tree|moe|config"
)
"""What the last word of a name says when the value is about a secret and is not one, as in RAY_AUTH_MODE."""
COUNTED = frozenset({"max", "min", "num", "number", "total", "batched", "per", "new", "count"})
"""Words of a name that make `tokens` or `keys` a number."""
TEXT_TOKEN = (COUNTED - {"new"}) | {"bos", "eos", "pad", "unk", "special", "prompt", "prefill", "speculative"}
"""Words of a name that make `token` a part of a text, or a number of these."""
PLAIN = re.compile("[0-9]+|[a-z]{1,5}")
"""Numbers and short words stand in too many texts by chance, unless the name has a strong word."""
OPTION = re.compile(r"(--[^\s=]*)(=|\s+)(.*)", re.DOTALL)
"""An option and its value in one word. Whitespace between them is a mistake, and the value a secret all the same."""
NAME = re.compile(r"[A-Za-z_]\w{0,80}")
ASSIGNS = re.compile(r"^\s*-|=")
YAML_LINE = re.compile(r"""[\s-]*["']?([\w./-]+)["']?:(?:\s+|$)(.*)""")
YAML_FLOW = re.compile(r"""["']?([\w./-]+)["']?:\s+([^,{}\[\]]+)""")
YAML_BLOCKS = ("", "|", "|-", "|+", ">", ">-", ">+")
LONGEST_PARSED = 1 << 16
NOT_SECRET_NAMES = frozenset({"pwd", "oldpwd"})
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
KEPT_USER = frozenset({"ssh", "git+ssh", "sftp"})
"""Schemes of URLs in which a user without a password is not a secret."""
USERINFO = re.compile(
    # The second form has a / or a # in the password, which should be %2F or %23, and is not; host:port/ is not one.
    # Nothing here is looked at many times over: a stranger's line may be long.
    r"""://([^\s/?#"'<>]*|[^\s/:@"'<>]+:(?!\d{1,5}[/?#])[^\s@"'<>]{0,256})@"""
)
"""A URL's user and password, from behind its scheme up to the @."""
SCHEME = re.compile("[a-z][a-z0-9+.-]*$", re.IGNORECASE)
LONGEST_SCHEME = 16


def name_says_secret(name: str) -> bool:
    """Returns whether the value of a variable, option or key of this name is a secret."""
    words = _words(name)
    if not words or name.lower() in NOT_SECRET_NAMES or HARMLESS_END.fullmatch(words[-1]):
        return False
    if words[-1] in {"id", "ids"} and not any(map(STRONG_WORD.fullmatch, words)):  # VAULT_SECRET_ID is one
        return False
    known = set(words)
    harmless = {"tokens", "keys"} if COUNTED & known else set()
    harmless |= {"token"} if TEXT_TOKEN & known else set()
    return words[-1] == "pass" or any(SECRET_WORD.fullmatch(word) for word in known - harmless)


def _words(name: str) -> list[str]:
    return [word.lower() for word in WORDS.findall(name)]


def _hides(name: str, value: str) -> bool:
    """Returns whether a secret of this name must be hidden wherever it stands."""
    words = _words(name)
    strong = words[-2:] == ["api", "key"] or any(map(STRONG_WORD.fullmatch, words))
    return strong or not PLAIN.fullmatch(value)


def url_secrets(text: str) -> Iterator[str]:
    """Yields the password or the token that stands before the @ of each URL in a text."""
    for match in _userinfos(text):
        user, colon, password = match[1].partition(":")
        if password:
            yield password
        elif user and (colon or not _keeps_user(match)):
            yield user


def hide_urls(text: str, mask: str) -> str:
    """Returns a text with `mask` in place of user and password in each URL; ssh://me@host keeps its user."""
    parts, end = [], 0
    for match in _userinfos(text):
        user, colon, _ = match[1].partition(":")
        hidden = mask if not _keeps_user(match) else f"{user}:{mask}" if colon else user
        parts += [text[end : match.start(1)], hidden]
        end = match.end(1)
    return "".join([*parts, text[end:]])


def _userinfos(text: str) -> Iterable[re.Match[str]]:
    return USERINFO.finditer(text) if "://" in text and "@" in text else ()


def _keeps_user(match: re.Match[str]) -> bool:
    """Returns whether the user in this URL is not a secret."""
    scheme = SCHEME.search(match.string[max(0, match.start() - LONGEST_SCHEME) : match.start()])
    return scheme is not None and scheme[0].lower() in KEPT_USER


def map_secret_options(args: Iterable[str], hide: Callable[[str, str], str]) -> Iterator[str]:
    """Yields a command line with `hide(option, value)` in place of each value that is a secret.

    An option takes all words up to the next one that begins with a hyphen. Of any other word the whole is a secret if
    it holds one: a URL with a password, or JSON with a key whose name says so.
    """
    option = ""
    for word in args:
        if match := OPTION.fullmatch(word):
            option, between, value = match.groups()
            hidden = name_says_secret(option) or holds_secret(value)
            yield f"{option}{between}{hide(option, value)}" if hidden else word
        elif word.startswith("--"):
            option = word
            yield word
        else:
            option = "" if word.startswith("-") else option
            yield hide(option, word) if name_says_secret(option) or holds_secret(word) else word


def option_secrets(args: Iterable[str]) -> list[str]:
    """Returns the secrets in a command line that must be hidden wherever they stand."""
    found: list[str] = []

    def keep(option: str, value: str) -> str:
        if _hides(option, value):
            found.append(value)
        return value

    list(map_secret_options(args, keep))
    return found


def holds_secret(text: str) -> bool:
    """Returns whether a text has a URL with a password in it, or is JSON that holds a secret."""
    return next(url_secrets(text), None) is not None or any(True for _ in json_secrets(text, plain=True))


def json_secrets(text: str, *, plain: bool = False) -> Iterator[str]:
    """Yields the secrets in a text that is a mapping or a list in JSON."""
    if text.lstrip()[:1] in {"{", "["}:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        yield from value_secrets(value, plain=plain)


def value_secrets(value: Any, name: str = "", *, plain: bool = False) -> Iterator[str]:
    """Yields the secrets in a tree of mappings and lists that stands under `name`, such as a configuration.

    Those that would be found in too many texts by chance are yielded with `plain` only.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from value_secrets(inner, str(key), plain=plain)
            yield from _assigned_secrets(str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from value_secrets(inner, name, plain=plain)
        yield from option_secrets(str(word) for word in value if not isinstance(word, (dict, list, tuple)))
    elif value is not None and not isinstance(value, bool):
        text = str(value)
        if name_says_secret(name) and (plain or _hides(name, text)):
            yield from _mapped_secrets(text) or [text]
        yield from _assigned_secrets(text)
        if name.lower() == "auth":
            yield from _basic_password(text)
        yield from url_secrets(text)
        yield from json_secrets(text, plain=plain)


def _mapped_secrets(text: str) -> list[str]:
    """Returns the secrets in a text that is a mapping in JSON, or one of several lines in YAML."""
    found = list(json_secrets(text))
    if found or "\n" not in text.strip():
        return found
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---"))]
    return list(_yaml_secrets(lines)) if lines and YAML_LINE.fullmatch(lines[0]) else []


def _yaml_secrets(lines: Iterable[str]) -> Iterator[str]:
    """Yields the secrets in the lines of a mapping, as YAML is usually written: no parser of it need be installed."""
    block: dict[str, str] = {"": ""}
    for line in lines:
        for inner in YAML_FLOW.finditer(line) if "{" in line else ():
            yield from value_secrets({inner[1]: inner[2].strip(" \"'")})
        if match := YAML_LINE.fullmatch(line):
            yield from value_secrets(block)
            yield from value_secrets({match[1]: match[2].strip(" \"'")})
            block = {match[1]: ""} if match[2] in YAML_BLOCKS else {"": ""}
        else:
            block = {name: f"{above}\n{line.strip()}".strip() for name, above in block.items()}
    yield from value_secrets(block)


def _assigned_secrets(text: str) -> Iterator[str]:
    """Yields the secrets in a text that is a command line, or assignments as in NAME=VALUE."""
    if not ASSIGNS.search(text) or len(text) > LONGEST_PARSED:
        return
    import shlex

    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    if text.lstrip().startswith("-"):  # any other text may be about options
        yield from option_secrets(words)
    for word in words:
        name, _, value = word.partition("=")
        is_secret = NAME.fullmatch(name) is not None and name_says_secret(name)
        if value and not value.startswith("/") and is_secret and _hides(name, value):
            yield value


def _basic_password(text: str) -> Iterator[str]:
    """Yields the password of a login as Docker's config.json and HTTP headers have it: base64 of USER:PASSWORD."""
    import base64

    try:
        _, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return
    if colon:
        yield password
