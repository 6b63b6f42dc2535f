"""Messages of engines about registries, and the cause that each tells of."""

import pytest

from pipeline.host.registry_errors import RegistryCause, classify


@pytest.mark.parametrize(
    ("message", "status", "cause"),
    [
        ("toomanyrequests: You have reached your pull rate limit", 500, RegistryCause.RATE_LIMITED),
        ("http: server gave HTTP response to HTTPS client", 500, RegistryCause.PLAIN_HTTP),
        ('Get "https://r.example/v2/": proxyconnect tcp: dial tcp: permission denied', 500, RegistryCause.UNREACHABLE),
        ('Get "https://r.example/v2/": Forbidden', 403, RegistryCause.UNREACHABLE),
        ("pull access denied for x, repository does not exist", 404, RegistryCause.DENIED),
        ("unexpected status from HEAD request to https://r/v2/x: 403 Forbidden", 500, RegistryCause.DENIED),
        ("sorry", 401, RegistryCause.DENIED),
        ("manifest unknown: manifest unknown", 0, RegistryCause.UNKNOWN_IMAGE),
        ("timeout", 404, RegistryCause.UNKNOWN_IMAGE),
        ("sorry", 503, RegistryCause.INTERRUPTED),
        ("read tcp 10.0.0.1:4->10.0.0.2:5000: read: connection reset by peer", 0, RegistryCause.INTERRUPTED),
        ("unexpected status from PUT request: 502 Bad Gateway", 0, RegistryCause.INTERRUPTED),
        ("received unexpected HTTP status: 500 Internal Server Error", 0, RegistryCause.SERVER_ERROR),
        ("blob upload unknown to registry: unknown blob", 0, RegistryCause.SERVER_ERROR),
        ("dial tcp 127.0.0.1:5998: connect: connection refused", 0, RegistryCause.UNREACHABLE),
        (f"https://x:503/v2/x/blobs/sha256:{'503' * 20} sorry", 500, RegistryCause.OTHER),
    ],
)
def test_a_message_tells_of_a_cause(message: str, status: int, cause: RegistryCause) -> None:
    assert classify(message, status) is cause
