"""Records in a registry: one small OCI artifact each, so that a checkout can take the results of another.

Looked for over a plain socket; written over requests, which the docker SDK brings along.
"""

import hashlib
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pipeline.core.errors import TandemError
from pipeline.core.log import Log
from pipeline.registry import api
from pipeline.registry.push import Transient, retried

if TYPE_CHECKING:
    from requests import Response, Session

ARTIFACT = "application/vnd.tandem.record.v1"
CONTENT = "application/vnd.tandem.record.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
LARGEST = 4 << 20
WITHIN = 10.0


class RecordStore:
    """The records in one repository of a registry; written to only if `may_write`."""

    def __init__(self, address: str, repository: str, *, may_write: bool) -> None:
        self._address = address
        self._repository = repository
        self._may_write = may_write
        self._silent = False

    def get(self, task: str, fingerprint: str, log: Log) -> bytes | None:
        """A record's text, its digest checked; None if there is none. Raises TandemError for what is no record.

        A registry that does not answer is asked once, and has nothing.
        """
        if self._silent:
            return None
        try:
            return read(self._address, self._repository, tag(task, fingerprint))
        except api.Unreachable as error:
            self._silent = True
            log.line(f"no shared results: {error}")
            return None

    def put(self, task: str, fingerprint: str, text: bytes, log: Log) -> None:
        """Keep a record's text. Raises TandemError; Unreachable if the registry does not answer."""
        if self._may_write and not self._silent:
            write(self._address, self._repository, tag(task, fingerprint), text, log)


def tag(task: str, fingerprint: str) -> str:
    """The tag of a record: at most 128 characters of [A-Za-z0-9_.-], as the distribution spec wants."""
    return f"{task.replace(':', '-').replace('/', '-')[:60]}-{fingerprint}"


def read(address: str, repository: str, name: str) -> bytes | None:
    """The content of the artifact with that tag; None if there is none.

    Raises Unreachable, or TandemError if it is not an artifact of ours, or not of its own digest.
    """
    where = f"{address}/{repository}:{name}"
    found = api.manifest(address, repository, name)
    if found is None:
        return None
    try:
        kind, (layer,) = found.value["artifactType"], found.value["layers"]
        digest, size = layer["digest"], layer["size"]
        if (kind, layer["mediaType"]) != (ARTIFACT, CONTENT) or not 0 < size <= LARGEST:
            raise ValueError(f"{kind} with {size} bytes of {layer['mediaType']}")
    except (LookupError, TypeError, ValueError) as error:
        raise TandemError(f"{where}: not a record: {error}") from error
    content = api.blob(address, repository, digest)
    if content is None or _digest(content) != digest:
        raise TandemError(f"{where}: its content is {'gone' if content is None else 'not ' + digest}")
    return content


def write(address: str, repository: str, name: str, content: bytes, log: Log) -> None:
    """Put an artifact with this content under that tag. What may pass is tried again; raises TandemError."""
    from requests import Session

    where = f"{address}/{repository}:{name}"
    layer = {"mediaType": CONTENT, "digest": _digest(content), "size": len(content)}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": {"mediaType": EMPTY, "digest": _digest(b"{}"), "size": 2},
        "layers": [layer],
    }
    text = json.dumps(manifest, sort_keys=True).encode()

    def send() -> None:
        with Session() as session:
            # Straight to the registry, as looks go: no proxy, no .netrc.
            session.trust_env = False
            session.auth = api.login(address)
            base = f"http://{address}/v2/{repository}"
            for blob in (b"{}", content):
                _upload(session, base, blob, where)
            _ask(session, "PUT", f"{base}/manifests/{name}", where, data=text, kind=MANIFEST)

    retried(send, log)
    log.line(f"{where} is there for others")


def _upload(session: "Session", base: str, blob: bytes, where: str) -> None:
    opened = _ask(session, "POST", f"{base}/blobs/uploads/", where)
    # Wherever the registry thinks it is, it is where we reached it: and only there the password goes.
    to = urlsplit(opened.headers.get("Location", ""))
    query = f"{to.query}&" if to.query else ""
    host = base.partition("/v2/")[0]
    _ask(session, "PUT", f"{host}{to.path}?{query}digest={_digest(blob)}", where, data=blob)


def _ask(
    session: "Session", method: str, url: str, where: str, *, data: bytes = b"", kind: str = "application/octet-stream"
) -> "Response":
    """One request that changes something. Raises Transient for a 5xx, TandemError for any other failure."""
    from requests import RequestException

    headers = {"Content-Type": kind}
    try:
        answer = session.request(method, url, data=data, headers=headers, timeout=WITHIN, allow_redirects=False)
    except RequestException as error:
        raise api.Unreachable(f"{where}: the registry does not answer: {error}") from error
    said = f"{where}: the registry says {answer.status_code} {answer.reason} to {method}"
    if answer.status_code >= 500:
        raise Transient(said)
    if answer.status_code not in (201, 202):
        raise TandemError(said, hint="log in with `docker login`" if answer.status_code in (401, 403) else "")
    return answer


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
