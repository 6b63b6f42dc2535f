"""What a claim on a container holds of, by the engine's description of it."""

import pytest

from pipeline.host import engine
from pipeline.tasks import claims


@pytest.mark.parametrize("status", ["paused", "exited", "restarting", "created", "dead"])
def test_a_container_that_does_not_run_does_not_hold_its_claim(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    # Docker's API: a paused container is Running, too.
    state = {"Status": status, "Running": status in {"paused", "restarting"}, "Paused": status == "paused"}
    monkeypatch.setattr(engine, "find_container", lambda *_: {"State": state, "Config": {"Labels": {"a": "b"}}})
    assert claims._container(claims.container("local", "x", {"a": "b"})) == f"the container x is {status}"


def test_a_container_that_runs_with_its_labels_holds_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"Status": "running", "Running": True, "Paused": False}
    monkeypatch.setattr(engine, "find_container", lambda *_: {"State": state, "Config": {"Labels": {"a": "b"}}})
    assert claims._container(claims.container("local", "x", {"a": "b"})) is None
    assert claims._container(claims.container("local", "x", {"a": "c"})) == "the container x has a=b"
