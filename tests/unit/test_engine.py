"""Where an endpoint's engine is looked for."""

import pytest

from pipeline import engine
from pipeline.errors import HostError


def test_the_local_engine_is_the_one_that_the_client_talks_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/other.sock")
    assert engine.address("local") == "/run/other.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert engine.address("local") == ("127.0.0.1", 2375)


@pytest.mark.parametrize(
    ("host", "address"),
    [("tcp://spark-1", ("spark-1", 2375)), ("tcp://127.0.0.1:99/", ("127.0.0.1", 99)), ("tcp://[::1]:9", ("::1", 9))],
)
def test_a_port_may_be_left_out_as_docker_has_it(host: str, address: tuple[str, int]) -> None:
    assert engine.address(host) == address


@pytest.mark.parametrize("host", ["tcp://", "tcp://:2375", "tcp://spark-1:many", "tcp://spark-1:99999"])
def test_a_host_and_port_that_are_none_are_refused(host: str) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        engine.address(host)


def test_an_endpoint_that_a_socket_cannot_reach_is_named() -> None:
    with pytest.raises(HostError, match="gopher://x"):
        engine.address("gopher://x")


def test_no_engine_is_one_plain_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(HostError, match="no Docker engine answers") as caught:
        engine.look("local", "/version")
    assert "./doitw host" in caught.value.hint
