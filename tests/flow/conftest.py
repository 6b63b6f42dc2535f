"""Fixtures of the whole runs."""

from pathlib import Path

import pytest

from tests.flow.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A toy project that has not run yet."""
    return Project(tmp_path / "toy")
