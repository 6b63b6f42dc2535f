"""A registry's HTTP API, as far as a look needs it: manifests by digest or tag, and their platforms; and their end.

Plain HTTP, which is what a registry on loopback or in a lab speaks; with the name and password of `docker login` where
the registry wants them.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from pipeline.core import http_client
from pipeline.core.errors import TandemError
from pipeline.host import docker_config

ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)
"""Media types of manifests (OCI image spec 1.1; Docker registry v2, schema 2)."""
AT_ONCE = 100


class Unreachable(TandemError):
    """Nobody answers at the registry's address, or what answers is no registry."""


class Forbidden(TandemError):
    """The registry's configuration forbids what was asked for."""


class Manifest(Struct, frozen=True):
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
    answer = _found(address, path, "HEAD")
    if answer is None:
        return None
    return answer.headers.get("docker-content-digest")


def manifest(address: str, repository: str, reference: str) -> Manifest | None:
    """A manifest or index by tag or digest; None if the registry has not got it. Raises as head()."""
    path = f"/v2/{repository}/manifests/{reference}"
    answer = _found(address, path, "GET")
    if answer is None:
        return None
    try:
        value = json.loads(answer.body)
    except ValueError as error:
        raise TandemError(f"the registry {address} gives no manifest for {path}: {error}") from error
    if not isinstance(value, dict):
        raise TandemError(f"the registry {address} gives no manifest for {path}: {type(value).__name__}")
    return Manifest(answer.headers.get("docker-content-digest", ""), value)


def blob(address: str, repository: str, digest: str) -> bytes | None:
    """A blob, whose content is not checked here; None if the registry has not got it. Raises as head()."""
    path = f"/v2/{repository}/blobs/{digest}"
    answer = _found(address, path, "GET")
    return None if answer is None else answer.body


def missing(address: str, repository: str, digest: str) -> tuple[str, ...] | None:
    """The digests of what a manifest or index names and the registry has not got; None if it has not got itself.

    A registry that lost a blob still answers for the manifest. Raises as head().
    """
    found = manifest(address, repository, digest)
    if found is None:
        return None
    parts = [("manifests", part["digest"]) for part in found.value.get("manifests", [])]
    parts += [("blobs", part["digest"]) for part in (found.value.get("config"), *found.value.get("layers", [])) if part]
    statuses = _statuses(address, [f"/v2/{repository}/{kind}/{part}" for kind, part in parts])
    return tuple(part for (_, part), status in zip(parts, statuses, strict=True) if status == 404)


def having(address: str, repository: str, references: Sequence[str]) -> tuple[str, ...]:
    """Those of the digests and tags under which the repository has a manifest. Raises Unreachable."""
    statuses: list[int] = []
    # No more at once: nothing is read before all is sent, and the connection holds only so many answers.
    for first in range(0, len(references), AT_ONCE):
        part = references[first : first + AT_ONCE]
        statuses += _statuses(address, [f"/v2/{repository}/manifests/{reference}" for reference in part])
    return tuple(reference for reference, status in zip(references, statuses, strict=True) if status == 200)


def tags(address: str, repository: str) -> tuple[str, ...]:
    """The repository's tags; none if there is no such repository. Raises as head()."""
    path = f"/v2/{repository}/tags/list"
    answer = _found(address, path, "GET")
    try:
        return tuple(answer.json()["tags"] or ()) if answer else ()
    except (LookupError, TypeError, ValueError) as error:
        raise TandemError(f"the registry {address} gives no list of tags for {path}: {error}") from error


def delete(address: str, repository: str, digest: str) -> None:
    """Delete a manifest and its tags; what is gone already is as good. Blobs stay until the registry collects them.

    Raises Forbidden if the registry deletes nothing, Unreachable, TandemError for another answer (OCI distribution
    spec 1.1, "Deleting Manifests": 202, 404, or 405).
    """
    path = f"/v2/{repository}/manifests/{digest}"
    answer = _ask(address, path, "DELETE")
    if answer.status == 405:
        raise Forbidden(f"the registry {address} deletes no manifests", hint="its configuration must enable it")
    if answer.status not in (202, 404):
        raise TandemError(f"the registry {address} answers {answer.status} to DELETE {path}", hint=_hint(answer.status))


def _statuses(address: str, paths: Sequence[str]) -> list[int]:
    where, headers = _where(address), {"Accept": ACCEPT}
    try:
        statuses = http_client.heads(where, paths, headers=headers)
        if 401 in statuses and (known := login(address)):
            statuses = http_client.heads(where, paths, headers=headers | _basic(known))
    except (OSError, ValueError) as error:
        raise _unreachable(address, error) from error
    return statuses


def _found(address: str, path: str, method: str) -> http_client.Answer | None:
    """What the registry has at a path; None for 404. Raises TandemError for any other answer than 200."""
    answer = _ask(address, path, method)
    if answer.status not in (200, 404):
        raise TandemError(
            f"the registry {address} answers {answer.status} to {method} {path}", hint=_hint(answer.status)
        )
    return answer if answer.status == 200 else None


def login(address: str) -> tuple[str, str] | None:
    """Name and password for a registry from Docker's configuration, its credential helpers included."""
    from docker import auth

    with docker_config.read():
        found = auth.load_config().resolve_authconfig(address) or {}
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


def _ask(address: str, path: str, method: str) -> http_client.Answer:
    headers = {"Accept": ACCEPT}
    try:
        answer = http_client.ask(_where(address), path, method=method, headers=headers)
        # Asked for only now: reading Docker's configuration takes longer than a look does.
        if answer.status == 401 and path != "/v2/" and (known := login(address)):
            answer = http_client.ask(_where(address), path, method=method, headers=headers | _basic(known))
        return answer
    except (OSError, ValueError) as error:
        raise _unreachable(address, error) from error


def _where(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _basic(known: tuple[str, str]) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(':'.join(known).encode()).decode()}"}


def _unreachable(address: str, error: Exception) -> Unreachable:
    return Unreachable(
        f"no registry answers at {address}: {error}",
        hint="`doit registry` starts the local one, if pipeline.yaml says serve",
    )


def _hint(status: int) -> str:
    return "log in with `docker login`" if status in (401, 403) else ""
