"""The docker client's own config.json, whose credentials the SDK reads: damaged, it is one message."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.errors import TandemError


@contextmanager
def read() -> Iterator[None]:
    """Turn whatever the SDK raises over a config.json that makes no sense into TandemError."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (APIError, RequestException):
        raise  # the engine's answer, or none, which has nothing to do with it
    except (DockerException, OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        where = os.environ.get("DOCKER_CONFIG") or "~/.docker"
        raise TandemError(
            f"{where}/config.json, the docker client's own settings, cannot be read: {error}",
            hint="mend it, or let `docker login` write it anew",
        ) from error


def refuse_unreadable() -> None:
    """Raise TandemError if it cannot be read; that it is not there is fine."""
    with read():
        from docker import auth
        from docker.utils.config import find_config_file, load_general_config

        # The SDK passes over a file that is not JSON.
        if path := find_config_file():
            json.loads(Path(str(path)).read_text(encoding="utf-8"))
        auth.load_config()
        dict(load_general_config().get("HttpHeaders") or {})
