"""Unit tests start no process; engine tests need an engine, and say so by failing."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from pipeline.core import redact

# In CI the same examples each time; a person's runs go on searching. A noisy machine is no failure.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("person", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "person")

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True, scope="session")
def signals_as_in_a_terminal() -> None:
    """Whoever runs the tests in the background has these ignored, and what is started here would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def secrets_of_its_own() -> Iterator[None]:
    """A test's secrets are hidden in no other test of the same process."""
    yield
    redact.forget()


@pytest.fixture(autouse=True)
def cache_of_its_own(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit test neither reads nor writes the cache of whoever runs it, where the key of hashes lies too."""
    if "unit" in request.path.relative_to(ROOT / "tests").parts:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def no_process_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "unit" not in request.path.relative_to(ROOT / "tests").parts:
        return

    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail(f"a unit test tried to start {args}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
