"""A registry's HTTP API, as far as a look needs it: manifests by digest or tag, and their platforms.

Plain HTTP, which is what a registry on loopback or in a lab speaks; with the name and password of `docker login` where
the registry wants them.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any

from pipeline import sockets
from pipeline.errors import TandemError

ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)
"""Media types of manifests (OCI image spec 1.1; Docker registry v2, schema 2)."""


class Unreachable(TandemError):
    """Nobody answers at the registry's address, or what answers is no registry."""


@dataclass(frozen=True)
class Manifest:
    """A manifest as the registry gives it: its digest, and its JSON."""

    digest: str
    value: Any


def answers(address: str) -> bool:
    """Whether a registry answers at host:port (GET /v2/ says 200 or 401)."""
    try:
        return _ask(address, "/v2/", "GET").status in (200, 401)
    except Unreachable:
        return False


def head(address: str, repository: str, reference: str) -> str | None:
    """The digest (sha256:…) under which the registry has a tag or digest; None if it has not.

    Raises Unreachable, or TandemError for an answer that is neither 200 nor 404.
    """
    path = f"/v2/{repository}/manifests/{reference}"
    answer = _ask(address, path, "HEAD")
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise TandemError(f"the registry {address} answers {answer.status} to HEAD {path}", hint=_hint(answer.status))
    return answer.headers.get("docker-content-digest")


def manifest(address: str, repository: str, reference: str) -> Manifest | None:
    """A manifest or index by tag or digest; None if the registry has not got it. Raises as head()."""
    path = f"/v2/{repository}/manifests/{reference}"
    answer = _ask(address, path, "GET")
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise TandemError(f"the registry {address} answers {answer.status} to GET {path}", hint=_hint(answer.status))
    return Manifest(answer.headers.get("docker-content-digest", ""), json.loads(answer.body))


def blob(address: str, repository: str, digest: str) -> bytes | None:
    """A blob, whose content is not checked here; None if the registry has not got it. Raises as head()."""
    path = f"/v2/{repository}/blobs/{digest}"
    answer = _ask(address, path, "GET")
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise TandemError(f"the registry {address} answers {answer.status} to GET {path}", hint=_hint(answer.status))
    return answer.body


def login(address: str) -> tuple[str, str] | None:
    """Name and password for a registry from Docker's configuration, its credential helpers included."""
    from docker import auth
    from docker.errors import DockerException

    try:
        found = auth.load_config().resolve_authconfig(address) or {}
    except DockerException as error:
        raise TandemError(f"Docker's credentials for {address} cannot be read: {error}") from error
    name, password = found.get("username") or found.get("Username"), found.get("password") or found.get("Password")
    return (name, password) if name and password else None


def platforms(address: str, repository: str, digest: str) -> tuple[str, ...]:
    """The platforms (os/architecture) that a pushed manifest or index offers, sorted. Raises as head()."""
    found = manifest(address, repository, digest)
    if found is None:
        return ()
    if "manifests" in found.value:
        entries = [entry.get("platform", {}) for entry in found.value["manifests"]]
    else:
        config = found.value["config"]["digest"]
        answer = _ask(address, f"/v2/{repository}/blobs/{config}", "GET")
        entries = [answer.json()] if answer.status == 200 else []
    return tuple(sorted(f"{entry.get('os')}/{entry.get('architecture')}" for entry in entries))


def _ask(address: str, path: str, method: str) -> sockets.Answer:
    host, _, port = address.rpartition(":")
    where, headers = (host.strip("[]"), int(port)), {"Accept": ACCEPT}
    try:
        answer = sockets.ask(where, path, method=method, headers=headers)
        # Asked for only now: reading Docker's configuration takes longer than a look does.
        if answer.status == 401 and path != "/v2/" and (known := login(address)):
            basic = base64.b64encode(":".join(known).encode()).decode()
            answer = sockets.ask(where, path, method=method, headers={**headers, "Authorization": f"Basic {basic}"})
        return answer
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"no registry answers at {address}: {error}",
            hint="`doit registry` starts the local one, if pipeline.yaml says serve",
        ) from error


def _hint(status: int) -> str:
    return "log in with `docker login`" if status in (401, 403) else ""
