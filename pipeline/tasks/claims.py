"""What records claim of engines, registries and services, and the quick look that tells whether it still holds."""

from collections.abc import Callable, Mapping

from pipeline.core import http_client
from pipeline.core.errors import TandemError
from pipeline.graph.task import Claim
from pipeline.graph.world import World
from pipeline.host import engine
from pipeline.registry import api


def register(world: World) -> None:
    """Teach the world the kinds of claim of this module."""
    checks: Mapping[str, Callable[[Claim], str | None]] = {
        "image": _image,
        "manifest": _manifest,
        "registry": _registry,
        "container": _container,
        "health": _health,
        "never": _never,
    }
    for kind, check in checks.items():
        world.register(kind, _guarded(check))


def file(path: str, sha256: str) -> Claim:
    """A file (its path below the checkout) has this content."""
    return Claim(kind="file", what={"path": path, "sha256": sha256})


def image(digest: str, endpoint: str = "local") -> Claim:
    """The engine's store holds an image of this digest."""
    return Claim(kind="image", what={"endpoint": endpoint, "digest": digest})


def manifest(address: str, repository: str, reference: str, digest: str) -> Claim:
    """The registry gives this digest for a tag; or, for the digest itself, has all that belongs to it."""
    what = {"address": address, "repository": repository, "reference": reference, "digest": digest}
    return Claim(kind="manifest", what=what)


def serving(address: str) -> Claim:
    """A registry answers at host:port."""
    return Claim(kind="registry", what={"address": address})


def container(endpoint: str, name: str, labels: Mapping[str, str]) -> Claim:
    """A container of that name runs, and carries these labels."""
    return Claim(kind="container", what={"endpoint": endpoint, "name": name, "labels": dict(labels)})


def health(host: str, port: int, path: str = "/health") -> Claim:
    """GET http://host:port/path says 200."""
    return Claim(kind="health", what={"host": host, "port": port, "path": path})


def never(why: str) -> Claim:
    """A claim that never holds: the task was asked to run again."""
    return Claim(kind="never", what={"why": why})


def _guarded(check: Callable[[Claim], str | None]) -> Callable[[Claim], str | None]:
    def guarded(claim: Claim) -> str | None:
        try:
            return check(claim)
        except TandemError as error:
            return str(error)

    return guarded


def _image(claim: Claim) -> str | None:
    digest = str(claim.what["digest"])
    found = engine.find_image(str(claim.what["endpoint"]), digest)
    if found is None or found["Id"] != digest:
        return f"the engine's store has no image {digest}"
    return None


def _manifest(claim: Claim) -> str | None:
    address, repository = str(claim.what["address"]), str(claim.what["repository"])
    reference, digest = str(claim.what["reference"]), str(claim.what["digest"])
    if reference == digest:
        gone = api.missing_parts(address, repository, digest)
        said = "nothing" if gone is None else f"no {gone[0]}, which belongs to what it has" if gone else ""
    else:
        found = api.find_digest(address, repository, reference)
        said = "" if found == digest else found or "nothing"
    return f"{address}/{repository} has {said} as {reference}" if said else None


def _registry(claim: Claim) -> str | None:
    return None if api.is_up(str(claim.what["address"])) else f"no registry answers at {claim.what['address']}"


def _container(claim: Claim) -> str | None:
    name = str(claim.what["name"])
    found = engine.find_container(str(claim.what["endpoint"]), name)
    if found is None:
        return f"there is no container {name}"
    if not found["State"]["Running"]:
        return f"the container {name} is {found['State']['Status']}"
    wanted = claim.what["labels"]
    labels = found["Config"]["Labels"] or {}
    assert isinstance(wanted, dict)
    for label, value in wanted.items():
        if labels.get(label) != value:
            return f"the container {name} has {label}={labels.get(label)}"
    return None


def _health(claim: Claim) -> str | None:
    host, port, path = str(claim.what["host"]), int(str(claim.what["port"])), str(claim.what["path"])
    try:
        status = http_client.request((host, port), path, within=10).status
    except (OSError, ValueError) as error:
        return f"http://{host}:{port}{path} does not answer: {error}"
    return None if status == 200 else f"http://{host}:{port}{path} says {status}"


def _never(claim: Claim) -> str | None:
    return str(claim.what["why"])
