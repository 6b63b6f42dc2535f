"""Talks to the Docker engine of an endpoint: over its socket to read quickly, through the Docker SDK to change things.

An endpoint is "local" (the engine that the docker client of this machine uses) or a Docker host as in
`ssh://me@spark-1`.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pipeline.core import http_client
from pipeline.core.errors import HostError, TandemError
from pipeline.host import docker_config
from pipeline.host.endpoint import SOCKET, docker_host

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

LABEL = "tandem"
"""Every container, network and volume that Tandem makes has a label that starts with this."""

HOST_HINT = "./doitw host says what is missing"


def api_address(endpoint: str) -> str | tuple[str, int]:
    """Returns where the endpoint's API listens: a socket's path or (host, port). Raises HostError for other schemes."""
    host = docker_host() if endpoint == "local" else endpoint
    scheme, _, rest = host.partition("://")
    if not host:
        return SOCKET
    if scheme == "unix":
        return rest
    if scheme == "tcp":
        return _host_and_port(host)
    raise HostError(f"the Docker endpoint {host!r} is not supported here", hint="use unix:// or tcp://")


def _host_and_port(host: str) -> tuple[str, int]:
    """Returns host and port of tcp://HOST[:PORT]. Without a port docker uses 2375."""
    try:
        url = urlsplit(host)
        if url.hostname:
            return url.hostname, url.port or 2375
    except ValueError:
        pass
    raise HostError(f"the Docker endpoint {host!r} cannot be read", hint="write it as in tcp://spark-1:2375")


def get(endpoint: str, path: str) -> Any:
    """Returns the JSON at a path of the engine's API (GET), or None for a 404.

    Raises HostError if no engine answers, TandemError for any other status.
    """
    try:
        answer = http_client.request(api_address(endpoint), path)
        if answer.status == 200:
            return answer.json()
    except (OSError, ValueError) as error:  # ValueError: it does not speak HTTP, or not JSON
        reason = getattr(error, "strerror", None) or error
        raise HostError(f"no Docker engine answers at {_shown(endpoint)}: {reason}", hint=HOST_HINT) from error
    if answer.status == 404:
        return None
    raise TandemError(f"the Docker engine at {endpoint} answers {answer.status} to {path}: {answer.body[:200]!r}")


def find_image(endpoint: str, reference: str) -> Any:
    """Returns the engine's description of an image (by name, name@digest or digest), or None. Raises as get()."""
    return get(endpoint, f"/images/{quote(reference, safe='/:@')}/json")


def find_container(endpoint: str, name: str) -> Any:
    """Returns the engine's description of a container, or None. Raises as get()."""
    return get(endpoint, f"/containers/{quote(name, safe='')}/json")


def list_images(client: "DockerClient") -> list[Any]:
    """Returns the engine's descriptions of its images. Raises docker's NotFound if the list fails five times.

    The engine first lists the images and then reads each, and answers 404 if one was removed in between. The SDK's
    `images.list()` reads each once more.
    """
    from docker.errors import NotFound
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

    again = retry_if_exception_type(NotFound)
    images: list[Any] = Retrying(retry=again, stop=stop_after_attempt(5), wait=wait_random(0, 0.2), reraise=True)(
        client.api.images
    )
    return images


def rename_image(digest: str, old: str, new: str) -> None:
    """Renames an image of the local store from one name:tag to another. Raises as session()."""
    repository, _, tag = new.rpartition(":")
    with session() as opened:
        opened.images.get(digest).tag(repository, tag)
        opened.images.remove(old)


def remove_container(container: "Container") -> None:
    """Removes a container, running or not, with its anonymous volumes.

    If another process is removing it, waits for that. Raises docker's APIError, and NotFound if there is no container.
    """
    from docker.errors import APIError, NotFound
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

    def slow(error: BaseException) -> bool:
        # "could not kill: … did not receive an exit event": on a busy machine the engine still goes on with it.
        return isinstance(error, APIError) and error.is_server_error()

    try:
        for attempt in Retrying(
            retry=retry_if_exception(slow), stop=stop_after_attempt(3), wait=wait_fixed(5), reraise=True
        ):
            with attempt:
                container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code != 409:  # another process is removing it
            raise
        with suppress(NotFound):
            container.wait(condition="removed", timeout=60)


@contextmanager
def session(
    endpoint: str = "local", *, timeout_s: int = 600, error: type[TandemError] | None = None
) -> Iterator["DockerClient"]:
    """Yields a client of the endpoint's engine, as client() makes it, and closes it at the end of the block.

    What the SDK raises in the block becomes one of our errors, as in failures().
    """
    where = "" if endpoint == "local" else endpoint
    with closing(client(endpoint, timeout_s=timeout_s)) as opened, failures(where, error=error):
        yield opened


@contextmanager
def failures(doing: str = "", *, error: type[TandemError] | None = None) -> Iterator[None]:
    """Turns what the Docker SDK raises in the block into an error whose message begins with `doing`.

    That is `error` if it is given; else TandemError if the engine refuses, and HostError if it stops answering.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except DockerException as refusal:
        reason = getattr(refusal, "explanation", None) or refusal
        raise _failure(doing, str(reason), error or TandemError) from refusal
    except (RequestException, HTTPError) as lost:
        raise _failure(doing, root_cause(lost), error or HostError) from lost


def _failure(doing: str, reason: str, error: type[TandemError]) -> TandemError:
    subject = f"{doing}: the Docker engine" if doing else "the Docker engine"
    return error(f"{subject} failed: {reason}", hint=HOST_HINT if issubclass(error, HostError) else "")


def client(endpoint: str = "local", *, timeout_s: int = 600) -> "DockerClient":
    """Returns a client of the Docker SDK for the endpoint; `timeout_s` is the time-out of one call.

    Raises HostError if no engine answers, TandemError if the docker client's configuration cannot be read.
    """
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    docker_config.check_readable()
    try:
        if endpoint == "local":
            return docker.DockerClient(base_url=docker_host() or f"unix://{SOCKET}", timeout=timeout_s)
        return docker.DockerClient(base_url=endpoint, timeout=timeout_s, use_ssh_client=True)
    except (DockerException, RequestException, ValueError) as error:  # ValueError: a port out of range
        raise HostError(
            f"no Docker engine answers at {_shown(endpoint)}: {root_cause(error)}", hint=HOST_HINT
        ) from error


def _shown(endpoint: str) -> str:
    return f"local ({docker_host() or f'unix://{SOCKET}'})" if endpoint == "local" else endpoint


def root_cause(error: BaseException) -> str:
    """Returns the reason that the system gave, without what the SDK and its libraries add."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error)
