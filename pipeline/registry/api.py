"""A registry's HTTP API, as far as Tandem needs it: manifests and blobs, their platforms, and their deletion."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from msgspec import Struct

from pipeline.core import http_client
from pipeline.core.errors import TandemError
from pipeline.registry import transport
from pipeline.registry.transport import LOGIN_HINT, RegistryUnreachable

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Media types of manifests (OCI image spec 1.1; Docker registry v2, schema 2)."""
ACCEPT = {"Accept": ", ".join(MANIFEST_TYPES)}
BATCH_SIZE = 100
"""Requests sent before an answer is read: the connection can hold only so many answers."""


class DeletionDisabled(TandemError):
    """The registry's configuration does not allow deletions."""


class Manifest(Struct, frozen=True):
    """A manifest or index as the registry gives it."""

    digest: str
    value: Any
    """Its JSON: an object."""


def is_up(address: str) -> bool:
    """Returns whether a registry answers at host:port (GET /v2/ says 200 or 401)."""
    try:
        return transport.request(address, "/v2/", "GET", log_in=False).status in (
            HTTPStatus.OK,
            HTTPStatus.UNAUTHORIZED,
        )
    except RegistryUnreachable:
        return False


def find_digest(address: str, repository: str, reference: str) -> str | None:
    """Returns the digest (sha256:…) under which the registry has a tag or digest; None if it does not have it.

    Raises RegistryUnreachable, and TandemError for an answer other than 200 and 404.
    """
    answer = _get_or_none(address, f"/v2/{repository}/manifests/{reference}", "HEAD")
    return None if answer is None else answer.headers.get("docker-content-digest")


def get_manifest(address: str, repository: str, reference: str) -> Manifest | None:
    """Returns a manifest or index by tag or digest; None if the registry lacks it. Raises as find_digest()."""
    path = f"/v2/{repository}/manifests/{reference}"
    answer = _get_or_none(address, path, "GET")
    if answer is None:
        return None
    try:
        value = json.loads(answer.body)
    except ValueError as error:
        raise TandemError(f"the registry {address} does not give a manifest for {path}: {error}") from error
    if not isinstance(value, dict):
        raise TandemError(f"the registry {address} does not give a manifest for {path}: {type(value).__name__}")
    return Manifest(answer.headers.get("docker-content-digest", ""), value)


def get_blob(
    address: str, repository: str, digest: str, *, max_bytes: int = http_client.MAX_ANSWER_BYTES
) -> bytes | None:
    """Returns a blob, whose content is not verified; None if the registry does not have it.

    Raises as find_digest(), and TandemError if the whole answer is larger than `max_bytes`.
    """
    answer = _get_or_none(address, f"/v2/{repository}/blobs/{digest}", "GET", max_bytes=max_bytes)
    return None if answer is None else answer.body


def missing_parts(address: str, repository: str, digest: str) -> tuple[str, ...] | None:
    """Returns the digests that a manifest or index names and the registry lacks; None if it lacks the manifest.

    A registry that lost a blob still answers for the manifest. Raises as find_digest().
    """
    manifest = get_manifest(address, repository, digest)
    if manifest is None:
        return None
    with _reading_manifest(address, repository, digest):
        config, layers = manifest.value.get("config"), manifest.value.get("layers", [])
        parts = [("manifests", part["digest"]) for part in manifest.value.get("manifests", [])]
        parts += [("blobs", part["digest"]) for part in (config, *layers) if part]
    paths = [f"/v2/{repository}/{kind}/{part}" for kind, part in parts]
    statuses = transport.head_statuses(address, paths, ACCEPT)
    return tuple(part for (_, part), status in zip(parts, statuses, strict=True) if status == HTTPStatus.NOT_FOUND)


def existing_references(address: str, repository: str, references: Sequence[str]) -> tuple[str, ...]:
    """Returns those of the digests and tags under which the repository has a manifest. Raises RegistryUnreachable."""
    statuses: list[int] = []
    for first in range(0, len(references), BATCH_SIZE):
        batch = references[first : first + BATCH_SIZE]
        statuses += transport.head_statuses(
            address, [f"/v2/{repository}/manifests/{reference}" for reference in batch], ACCEPT
        )
    return tuple(reference for reference, status in zip(references, statuses, strict=True) if status == HTTPStatus.OK)


def list_tags(address: str, repository: str) -> tuple[str, ...]:
    """Returns the repository's tags; none if it does not exist. Raises as find_digest()."""
    path = f"/v2/{repository}/tags/list"
    answer = _get_or_none(address, path, "GET")
    try:
        return tuple(answer.json()["tags"] or ()) if answer else ()
    except (LookupError, TypeError, ValueError) as error:
        raise TandemError(f"the registry {address} does not list tags for {path}: {error}") from error


def delete_manifest(address: str, repository: str, digest: str) -> None:
    """Deletes a manifest and its tags, if it still exists. Its blobs stay until the registry collects them.

    Raises DeletionDisabled, RegistryUnreachable, and TandemError for another answer (OCI distribution spec 1.1,
    "Deleting Manifests": 202, 404, or 405).
    """
    path = f"/v2/{repository}/manifests/{digest}"
    answer = _request(address, path, "DELETE")
    if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
        raise DeletionDisabled(
            f"the registry {address} does not delete manifests", hint="its configuration must enable it"
        )
    if answer.status not in (HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND):
        raise _unexpected(address, path, "DELETE", answer.status)


def list_platforms(address: str, repository: str, digest: str) -> tuple[str, ...]:
    """Returns the platforms (os/architecture) of a pushed manifest or index, sorted. Raises as find_digest()."""
    manifest = get_manifest(address, repository, digest)
    if manifest is None:
        return ()
    with _reading_manifest(address, repository, digest):
        if "manifests" in manifest.value:
            entries = [entry.get("platform", {}) for entry in manifest.value["manifests"]]
        else:
            config = manifest.value["config"]["digest"]
            answer = _request(address, f"/v2/{repository}/blobs/{config}", "GET")
            entries = [answer.json()] if answer.status == HTTPStatus.OK else []
        return tuple(sorted(f"{entry.get('os')}/{entry.get('architecture')}" for entry in entries))


@contextmanager
def _reading_manifest(address: str, repository: str, digest: str) -> Iterator[None]:
    """Turns what a manifest of another shape than OCI's raises into TandemError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise TandemError(
            f"the registry {address} does not give an OCI manifest for {repository}@{digest}: {error!r}"
        ) from error


def _get_or_none(
    address: str, path: str, method: str, *, max_bytes: int = http_client.MAX_ANSWER_BYTES
) -> http_client.HttpResponse | None:
    """Returns the answer 200; None for 404. Raises TandemError for any other."""
    answer = _request(address, path, method, max_bytes=max_bytes)
    if answer.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        raise _unexpected(address, path, method, answer.status)
    return answer if answer.status == HTTPStatus.OK else None


def _request(
    address: str, path: str, method: str, *, max_bytes: int = http_client.MAX_ANSWER_BYTES
) -> http_client.HttpResponse:
    return transport.request(address, path, method, headers=ACCEPT, max_bytes=max_bytes)


def _unexpected(address: str, path: str, method: str, status: int) -> TandemError:
    refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    hint = LOGIN_HINT if refused else ""
    return TandemError(f"the registry {address} answers {status} to {method} {path}", hint=hint)
