"""Records in a registry: one small OCI artifact each, so that a checkout can use the results of another."""

import hashlib
import json
from http import HTTPStatus
from urllib.parse import urlsplit

from pipeline.core import http_client
from pipeline.core.errors import TandemError
from pipeline.core.log import Log
from pipeline.registry import api, transport
from pipeline.registry.retry import Transient, retry_transient
from pipeline.registry.transport import LOGIN_HINT, RegistryUnreachable

ARTIFACT_TYPE = "application/vnd.tandem.record.v1"
CONTENT_TYPE = "application/vnd.tandem.record.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
"""The content of an artifact's config (OCI image spec 1.1, "Guidance for an Empty Descriptor")."""
MAX_RECORD_BYTES = 4 << 20


class RecordStore:
    """The records in one repository of a registry."""

    def __init__(self, address: str, repository: str, *, may_write: bool) -> None:
        self._address = address
        self._repository = repository
        self._may_write = may_write
        self._unreachable = False

    def get(self, task: str, fingerprint: str, log: Log) -> bytes | None:
        """Returns a record's text, verified by its digest; None if there is none. Raises TandemError for other content.

        A registry that does not answer is asked once, and counts as empty.
        """
        if self._unreachable:
            return None
        try:
            return read_record(self._address, self._repository, record_tag(task, fingerprint))
        except RegistryUnreachable as error:
            self._unreachable = True
            log.line(f"no shared results: {error}")
            return None

    def put(self, task: str, fingerprint: str, text: bytes, log: Log) -> None:
        """Writes a record's text, if this store may be written to. Raises RegistryUnreachable, TandemError."""
        if self._may_write and not self._unreachable:
            write_record(self._address, self._repository, record_tag(task, fingerprint), text, log)


def record_tag(task: str, fingerprint: str) -> str:
    """Returns the tag of a record: at most 128 characters of [A-Za-z0-9_.-], as the distribution spec demands."""
    return f"{task.replace(':', '-').replace('/', '-')[:60]}-{fingerprint}"


def read_record(address: str, repository: str, tag: str) -> bytes | None:
    """Returns the content of the artifact with that tag; None if there is none.

    Raises RegistryUnreachable, and TandemError if it is not an artifact of ours, or does not have its own digest.
    """
    name = f"{address}/{repository}:{tag}"
    manifest = api.get_manifest(address, repository, tag)
    if manifest is None:
        return None
    try:
        artifact_type, (layer,) = manifest.value["artifactType"], manifest.value["layers"]
        digest, size = layer["digest"], layer["size"]
        if (artifact_type, layer["mediaType"]) != (ARTIFACT_TYPE, CONTENT_TYPE) or not 0 < size <= MAX_RECORD_BYTES:
            raise ValueError(f"{artifact_type} with {size} bytes of {layer['mediaType']}")
    except (LookupError, TypeError, ValueError) as error:
        raise TandemError(f"{name}: not a record: {error}") from error
    content = api.get_blob(address, repository, digest, max_bytes=MAX_RECORD_BYTES + http_client.MAX_HEAD_BYTES)
    if content is None or _digest(content) != digest:
        raise TandemError(f"{name}: its content is {'gone' if content is None else 'not ' + digest}")
    if len(content) != size:
        raise TandemError(f"{name}: its content has {len(content)} bytes, not {size}")
    return content


def write_record(address: str, repository: str, tag: str, content: bytes, log: Log) -> None:
    """Writes an artifact with this content under that tag; retries what may pass. Raises as RecordStore.put()."""
    name = f"{address}/{repository}:{tag}"
    layer = {"mediaType": CONTENT_TYPE, "digest": _digest(content), "size": len(content)}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": {"mediaType": EMPTY_TYPE, "digest": _digest(EMPTY), "size": len(EMPTY)},
        "layers": [layer],
    }
    text = json.dumps(manifest, sort_keys=True).encode()
    retry_transient(lambda: _upload_record(address, repository, tag, content, text), log)
    log.line(f"{name} is there for others")


def _upload_record(address: str, repository: str, tag: str, content: bytes, manifest: bytes) -> None:
    name = f"{address}/{repository}:{tag}"
    for blob in (EMPTY, content):
        _upload_blob(address, repository, blob, name)
    _send(address, f"/v2/{repository}/manifests/{tag}", "PUT", name, body=manifest, content_type=MANIFEST_TYPE)


def _upload_blob(address: str, repository: str, blob: bytes, name: str) -> None:
    opened = _send(address, f"/v2/{repository}/blobs/uploads/", "POST", name)
    # The registry may name itself differently: the upload, and with it the password, goes to where it was reached.
    location = urlsplit(opened.headers.get("location", ""))
    query = f"{location.query}&" if location.query else ""
    _send(address, f"{location.path}?{query}digest={_digest(blob)}", "PUT", name, body=blob)


def _send(
    address: str,
    path: str,
    method: str,
    name: str,
    *,
    body: bytes = b"",
    content_type: str = "application/octet-stream",
) -> http_client.HttpResponse:
    """Makes one request that changes something; `name` is the record's, for messages.

    Raises Transient for a 5xx, RegistryUnreachable, and TandemError for an answer other than 201 and 202.
    """
    answer = transport.request(address, path, method, headers={"Content-Type": content_type}, body=body)
    message = f"{name}: the registry answers {answer.status} to {method}"
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Transient(message)
    if answer.status not in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
        refused = answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        raise TandemError(message, hint=LOGIN_HINT if refused else "")
    return answer


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
