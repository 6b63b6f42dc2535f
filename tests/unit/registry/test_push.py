"""The engine's words about a failed push decide whether another try makes sense."""

import pytest

from pipeline.registry import push
from pipeline.registry.retry import Transient
from pipeline.registry.transport import RegistryUnreachable

REF = "127.0.0.1:5000/tandem/cpu:1"


@pytest.mark.parametrize(
    "said",
    [
        "received unexpected HTTP status: 503 Service Unavailable",
        "received unexpected HTTP status: 500 Internal Server Error",
        "unexpected status from PUT request: 502 Bad Gateway",
        "write tcp 127.0.0.1:4->127.0.0.1:5000: write: connection reset by peer",
        "blob upload unknown to registry: unknown blob",
        "unexpected EOF",
        "Put https://127.0.0.1:5000/v2/x/blobs/uploads/1?digest=sha256:ab403c401d: read: connection reset by peer",
        f"write tcp 10.0.0.1:40100->10.0.0.2:401: sha256:{'403' * 20}: i/o timeout",
    ],
)
def test_a_failure_that_may_pass_is_retried(said: str) -> None:
    assert isinstance(push.push_error(REF, said), Transient)


@pytest.mark.parametrize(
    "said",
    [
        "unauthorized: authentication required",
        "denied: requested access to the resource is denied",
        "unexpected status from HEAD request: 401 Unauthorized",
        "name unknown: repository name not known to registry (404)",
        "http: server gave HTTP response to HTTPS client",
        f"unexpected status from PUT request to https://x:503/v2/x/blobs/sha256:{'503' * 20}: 404 Not Found",
        f"unexpected status from HEAD request to https://x/v2/x/manifests/sha256:{'502' * 20}: 403 Forbidden",
    ],
)
def test_a_refusal_is_final(said: str) -> None:
    assert not isinstance(push.push_error(REF, said), Transient)


def test_a_registry_that_is_down_is_named_as_such() -> None:
    error = push.push_error(REF, "Get https://127.0.0.1:5998/v2/: dial tcp 127.0.0.1:5998: connect: connection refused")
    assert isinstance(error, RegistryUnreachable)


def test_a_registry_without_tls_is_explained_with_the_setting_of_the_engine() -> None:
    assert "insecure-registries" in push.push_error(REF, "http: server gave HTTP response to HTTPS client").hint
