"""What the tests on the real engine share."""

from collections.abc import Iterator

import pytest
from docker import DockerClient

from pipeline.host import engine
from tests import stored


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Iterator[DockerClient]:
    """A client of the engine; the images in the test module's REPOSITORY go with it."""
    client = engine.client()
    yield client
    if repository := getattr(request.module, "REPOSITORY", ""):
        stored.remove(client, f"{repository}:")
    client.close()
