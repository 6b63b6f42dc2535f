"""Where an endpoint's engine is looked for."""

import pytest

from pipeline import engine
from pipeline.errors import HostError


def test_the_local_engine_is_the_one_that_the_client_talks_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/other.sock")
    assert engine.address("local") == "/run/other.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert engine.address("local") == ("127.0.0.1", 2375)


def test_an_endpoint_that_a_socket_cannot_reach_is_named() -> None:
    with pytest.raises(HostError, match="gopher://x"):
        engine.address("gopher://x")


def test_no_engine_is_one_plain_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(HostError, match="no Docker engine answers") as caught:
        engine.look("local", "/version")
    assert "./doitw host" in caught.value.hint
