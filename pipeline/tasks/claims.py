"""The claims that records make about engines, registries and services, and a quick check of each kind."""

from collections.abc import Callable, Mapping

from pipeline.core import http_client
from pipeline.core.errors import TandemError
from pipeline.graph.task import Claim
from pipeline.graph.world import World
from pipeline.host import engine
from pipeline.registry import api


def register(world: World) -> None:
    """Registers the checks of this module's kinds of claim."""
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
    """Returns the claim that a file, by its path below the checkout, has this content."""
    return Claim(kind="file", what={"path": path, "sha256": sha256})


def image(digest: str, endpoint: str = "local") -> Claim:
    """Returns the claim that the engine's store has an image of this digest."""
    return Claim(kind="image", what={"endpoint": endpoint, "digest": digest})


def manifest(address: str, repository: str, reference: str, digest: str) -> Claim:
    """Returns the claim that a registry has this digest under a tag; for the digest itself, with all its parts."""
    what = {"address": address, "repository": repository, "reference": reference, "digest": digest}
    return Claim(kind="manifest", what=what)


def serving(address: str) -> Claim:
    """Returns the claim that a registry answers at host:port."""
    return Claim(kind="registry", what={"address": address})


def container(endpoint: str, name: str, labels: Mapping[str, str]) -> Claim:
    """Returns the claim that a container of that name runs, and has these labels."""
    return Claim(kind="container", what={"endpoint": endpoint, "name": name, "labels": dict(labels)})


def health(host: str, port: int, path: str = "/health") -> Claim:
    """Returns the claim that GET http://host:port/path answers 200."""
    return Claim(kind="health", what={"host": host, "port": port, "path": path})


def never(why: str) -> Claim:
    """Returns a claim that never holds: the task was asked to run again."""
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
    inspected = engine.find_image(str(claim.what["endpoint"]), digest)
    if inspected is None or inspected["Id"] != digest:
        return f"the engine's store has no image {digest}"
    return None


def _manifest(claim: Claim) -> str | None:
    address, repository = str(claim.what["address"]), str(claim.what["repository"])
    reference, digest = str(claim.what["reference"]), str(claim.what["digest"])
    if reference == digest:
        missing = api.missing_parts(address, repository, digest)
        actual = "nothing" if missing is None else f"no {missing[0]}, which belongs to what it has" if missing else ""
    else:
        tagged = api.find_digest(address, repository, reference)
        actual = "" if tagged == digest else tagged or "nothing"
    return f"{address}/{repository} has {actual} as {reference}" if actual else None


def _registry(claim: Claim) -> str | None:
    return None if api.is_up(str(claim.what["address"])) else f"no registry answers at {claim.what['address']}"


def _container(claim: Claim) -> str | None:
    name = str(claim.what["name"])
    inspected = engine.find_container(str(claim.what["endpoint"]), name)
    if inspected is None:
        return f"there is no container {name}"
    # A paused container counts as running, says the engine.
    if inspected["State"]["Status"] != "running":
        return f"the container {name} is {inspected['State']['Status']}"
    expected = claim.what["labels"]
    labels = inspected["Config"]["Labels"] or {}
    assert isinstance(expected, dict)
    for label, value in expected.items():
        if labels.get(label) != value:
            return f"the container {name} has {label}={labels.get(label)}"
    return None


def _health(claim: Claim) -> str | None:
    host, port, path = str(claim.what["host"]), int(str(claim.what["port"])), str(claim.what["path"])
    try:
        status = http_client.request((host, port), path, timeout_s=10).status
    except (OSError, ValueError) as error:
        return f"http://{host}:{port}{path} does not answer: {error}"
    return None if status == 200 else f"http://{host}:{port}{path} says {status}"


def _never(claim: Claim) -> str | None:
    return str(claim.what["why"])
