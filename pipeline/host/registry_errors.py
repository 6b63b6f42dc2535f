"""Finds the cause behind an engine's words about a registry.

The engine passes a registry's status on only as text in part (docker/docs#13915, moby/moby#36823).
"""

import re
from enum import Enum


class RegistryCause(Enum):
    """Why a registry did not do what an engine asked of it."""

    RATE_LIMITED = "it allows no more requests for now"
    PLAIN_HTTP = "it speaks http, and the engine expects https"
    DENIED = "it wants a login, or hides what the login may not see"
    UNREACHABLE = "no connection to it can be made"
    INTERRUPTED = "it is overloaded, or the connection to it broke; another try may succeed"
    SERVER_ERROR = "it failed, or lost an upload; another try may succeed"
    UNKNOWN_IMAGE = "it does not have the image"
    OTHER = "none of these"


DIGEST = re.compile(r"[0-9a-f]{12,}")
STATUS = re.compile(r"(?<![\w.:/-])[45]\d\d(?![\w.:/-]*\w)")
"""A status stands alone; a port, a size or a part of a name does not."""
PLAIN_HTTP = "the registry speaks http, and the engine expects https"
PLAIN_HTTP_HINT = 'add it to "insecure-registries" in the engine\'s daemon.json'
DENIED = ("unauthorized", "authentication required", "no basic auth", "denied", "forbidden")
PROXY = re.compile(r"proxyconnect|proxy authentication required|\b(get|head|post) \"[^\"]*\": forbidden\W*$")
"""The engine's proxy. If it refuses CONNECT, the engine says only the reason; a registry's own comes with words."""
SIGNS = {
    RegistryCause.INTERRUPTED: (
        *("connection reset", "unexpected eof", ": eof", "broken pipe", "timeout", "context deadline exceeded"),
        *("tls handshake", "bad gateway", "unavailable", "502", "503", "504"),
    ),
    RegistryCause.SERVER_ERROR: ("blob unknown", "unknown blob", "internal server error", "500"),
    RegistryCause.UNREACHABLE: (
        *("no such host", "name resolution", "server misbehaving", "network is unreachable", "no route to host"),
        "connection refused",
    ),
    RegistryCause.UNKNOWN_IMAGE: ("manifest unknown", "not found", "name unknown", "no such image", "does not exist"),
}
"""Words and statuses that tell of a cause; the first cause with a sign in the message counts."""


def classify(message: str, status: int = 0) -> RegistryCause:
    """Returns the cause that a message of an engine tells of; `status` is that of the engine's own answer, if known."""
    words = DIGEST.sub("…", message.lower())  # any three digits may stand in a digest
    statuses = set(STATUS.findall(words))
    if "toomanyrequests" in words or "rate limit" in words or status == 429:
        return RegistryCause.RATE_LIMITED
    if "http response to https client" in words:
        return RegistryCause.PLAIN_HTTP
    if PROXY.search(words):
        return RegistryCause.UNREACHABLE
    if {*statuses, str(status)} & {"401", "403"} or any(sign in words for sign in DENIED):
        return RegistryCause.DENIED
    if status == 404:
        return RegistryCause.UNKNOWN_IMAGE
    if status == 503:
        return RegistryCause.INTERRUPTED
    for cause, signs in SIGNS.items():
        if any(sign in statuses if sign.isdecimal() else sign in words for sign in signs):
            return cause
    return RegistryCause.OTHER
