"""Checks the docker client's config.json, from which the SDK reads credentials. A damaged one is one message."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core import redact
from pipeline.core.errors import TandemError


@contextmanager
def config_errors() -> Iterator[None]:
    """Turns what the SDK raises over a damaged config.json into TandemError."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (APIError, RequestException):
        raise  # the engine's answer, or none, which has nothing to do with it
    except (DockerException, OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise TandemError(
            f"{_folder()}/config.json, the docker client's own settings, cannot be read: {error}",
            hint="fix it, or run `docker login` to write a new one",
        ) from error


def check_readable() -> None:
    """Raises TandemError if config.json cannot be read. It may be missing."""
    with config_errors():
        from docker import auth
        from docker.utils.config import find_config_file, load_general_config

        # The SDK passes over a file that is not JSON.
        if path := find_config_file():
            json.loads(Path(str(path)).read_text(encoding="utf-8"))
        redact.register_in(dict(auth.load_config()))
        redact.register_in(dict(load_general_config().get("HttpHeaders") or {}))


def find_login(registry: str) -> dict[str, str]:
    """Returns what the configuration and its credential helpers have for a registry (host:port); empty for nothing.

    The keys are those of the engine's X-Registry-Auth. Raises TandemError if it cannot be read, or a helper fails.
    """
    import warnings

    from docker import auth
    from docker.credentials import StoreError

    with config_errors(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the SDK's own words on a helper that is missing
        try:
            login = dict(auth.load_config().resolve_authconfig(registry) or {})
        except Exception as error:
            if not isinstance(error.__cause__, StoreError):
                raise
            raise TandemError(
                f"{_folder()}/config.json names a credential helper that does not work: {error.__cause__}",
                hint="install it, or remove it from credsStore and credHelpers and log in with `docker login`",
            ) from error
    redact.register_in(login)
    return login


def _folder() -> str:
    return os.environ.get("DOCKER_CONFIG") or "~/.docker"
