"""Somebody else's image: its name to a digest, its bytes into the engine, and what it holds into a Reading.

The engine asks the registry, with the credentials of Docker's own configuration and credential helpers, so that what
`docker pull` can have can be had here. Nothing of the image runs.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, json
from msgspec.structs import replace

from pipeline.core import owners, procs
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.log import Log, announce, step
from pipeline.foreign import filesystem, inspection
from pipeline.foreign.facts import ImageFacts
from pipeline.foreign.inspection import ImageConfig
from pipeline.host import docker_config, engine, registry_errors
from pipeline.host.registry_errors import RegistryCause

CONTAINER_KIND = "reader"
"""What our label says of the containers that are made here."""
CHUNK_BYTES = 1 << 20
REGISTRY_TIMEOUT_S = 60


class ImageUnavailable(TandemError):
    """The registry does not give an image: it cannot be reached, has not got it, or wants a login."""


def resolve_digest(reference: str, platform: str, log: Log) -> str:
    """The digest (sha256:…) of the manifest or index that NAME:TAG or NAME@digest is in its registry.

    What the registry does not give is taken from this engine if it has an image of that name; the log says so.
    Raises Unavailable, or TandemError if there is none for the platform ("linux/arm64"), saying which there are.
    """
    given = reference.partition("@")[2]
    if given and _is_held(reference, platform):
        return given
    try:
        said = _ask_registry(reference)
    except ImageUnavailable as error:
        digest = _local_digest(reference, platform)
        if not digest:
            raise
        announce(log, f"{error}")
        announce(log, f"{reference} is taken as this engine has it: {digest}")
        return digest
    digest = str(said["Descriptor"]["digest"])
    # An attestation is listed as unknown/unknown. No list at all: one manifest, of which the engine tells nothing here.
    offers = sorted({f"{one.get('os')}/{one.get('architecture')}" for one in said.get("Platforms") or ()})
    offers = [offer for offer in offers if offer != "unknown/unknown"]
    if offers and _without_variant(platform) not in offers:
        raise _platform_error(reference, platform, ", ".join(offers))
    log.line(f"{reference} is {digest}")
    return digest


def pull_image(reference: str, digest: str, platform: str, log: Log) -> None:
    """Have the engine hold an image for a platform; nothing is fetched if it does already.

    Raises Unavailable, TandemError, Cancelled.
    """
    name = f"{repository_of(reference)}@{digest}"
    if _is_held(name, platform):
        log.line(f"{name} is there already")
        return
    with step(log, f"pulling {name} for {platform}"):
        _pull(name, platform, log)
    if not _is_held(name, platform):
        described = engine.find_image("local", name) or {}
        raise _platform_error(name, platform, f"{described.get('Os')}/{described.get('Architecture')}")


class ImageScan(Struct, frozen=True):
    """An image as it was read, and every path that it has: "d", "l" or "f" (folder, link, all else), and the path.

    Paths are bytes, since nothing makes the names in an image UTF-8.
    """

    reading: ImageFacts
    paths: tuple[bytes, ...]


def read_image(reference: str, digest: str, platform: str, log: Log) -> ImageScan:
    """What an image holds that the engine has: one pass over its files as a container that never starts exports them.

    Raises TandemError for an image that cannot be built on, Cancelled.
    """
    name = f"{repository_of(reference)}@{digest}"
    with step(log, f"reading {name}"), created_container(name, platform) as (identity, config):
        view = filesystem.read_tar(
            export_files(identity), inspection.RULES, lambda done: log.progress("read", done, None, "B")
        )
        log.line(f"{len(view.nodes)} paths")
        try:
            reading = replace(inspection.inspect_image(view, config, digest, platform), layers=_diff_ids(identity))
            json.encode(reading)
        except TandemError as error:
            raise TandemError(f"{reference}: {error}", hint=error.hint) from error
        except UnicodeEncodeError as error:
            raise TandemError(f"{reference}: a name in it that matters here is not UTF-8: {error.object!r}") from error
        paths = (f"{node.kind[0]} {path[1:]}" for path, node in view.nodes.items())
        return ImageScan(reading, tuple(sorted(path.encode("utf-8", "surrogateescape") for path in paths)))


def _diff_ids(identity: str) -> tuple[str, ...]:
    """The diff_ids of the image of a container that never started.

    Of an index the engine describes only what fits its own machine; an image committed from the container has the
    layers of the container's platform and, since nothing was changed, no other (seen with Docker 26.1).
    """
    client = engine.client()
    made = client.api.commit(identity)["Id"]
    try:
        layers: list[str] = engine.find_image("local", made)["RootFS"]["Layers"]
    finally:
        client.images.remove(made, force=True)
    return tuple(layers)


def repository_of(reference: str) -> str:
    """An image's name without tag and digest."""
    head, slash, last = reference.partition("@")[0].rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def _ask_registry(reference: str) -> Mapping[str, Any]:
    """What the registry says of an image, through the engine (GET /distribution/{name}/json)."""
    api = engine.client(within=REGISTRY_TIMEOUT_S).api
    with _engine_errors("asking a registry", reference), docker_config.config_errors():
        answer: Mapping[str, Any] = api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
    return answer


def registry_error(reference: str, said: str, status: int = 0) -> ImageUnavailable:
    """The engine's words about a registry, as one message; it passes the registry's own status on as text in part."""
    host, slash, _ = reference.partition("/")
    own = bool(slash and re.search(r"[.:]|^localhost$", host))
    hub, login = (host, f"`docker login {host}`") if own else ("Docker Hub", "`docker login`")
    why = said.strip().rstrip(".")
    match registry_errors.classify(said, status):
        case RegistryCause.RATE_LIMITED:
            return ImageUnavailable(f"{reference}: {hub} allows no more pulls for now", hint=f"{login}, or wait")
        case RegistryCause.PLAIN_HTTP:
            return ImageUnavailable(f"{reference}: {registry_errors.PLAIN_HTTP}", hint=registry_errors.PLAIN_HTTP_HINT)
        case RegistryCause.DENIED:
            # A hub answers the same for an image that it does not have and for one that wants a login.
            return ImageUnavailable(
                f"{reference}: {hub} does not give it without a login, or has no such image: {why}",
                hint=f"{login}, and check the name",
            )
        case RegistryCause.UNREACHABLE | RegistryCause.INTERRUPTED:
            return ImageUnavailable(
                f"{reference}: {hub} cannot be reached: {why}",
                hint="go where it can be reached, or `docker load` the image here; the engine's proxy is its own",
            )
        case RegistryCause.UNKNOWN_IMAGE:
            return ImageUnavailable(f"{reference}: {hub} has no such image: {why}", hint="check name and tag")
        case RegistryCause.SERVER_ERROR | RegistryCause.OTHER:
            return ImageUnavailable(f"{reference}: {hub} does not give it: {why}", hint="see what `docker pull` says")


def _platform_error(reference: str, platform: str, offers: str) -> TandemError:
    return TandemError(
        f"{reference} does not offer {platform}; it offers {offers}",
        hint="name an image for that platform, or another platform (image.yaml: platform; advise: --platform)",
    )


def _without_variant(platform: str) -> str:
    """os/architecture, without a variant."""
    return "/".join(platform.split("/")[:2])


def _local_digest(reference: str, platform: str) -> str:
    """The digest of an image that the engine has under a name; empty if it has none. Raises as resolve()."""
    described = engine.find_image("local", reference)
    if described is None:
        return ""
    name = repository_of(reference)
    digests = [one.rpartition("@") for one in described.get("RepoDigests") or ()]
    digest = next((digest for held, _, digest in digests if held == name), digests[0][2] if digests else "")
    if digest and not _is_held(reference, platform):
        raise _platform_error(
            reference, platform, f"{described['Os']}/{described['Architecture']}, as this engine has it"
        )
    return digest


def _is_held(name: str, platform: str) -> bool:
    """Whether the engine has an image's files for a platform; only making a container of them tells."""
    if engine.find_image("local", name) is None:
        return False
    try:
        with created_container(name, platform):
            return True
    except TandemError:
        return False


@contextmanager
def created_container(name: str, platform: str) -> Iterator[tuple[str, ImageConfig]]:
    """A container that never starts, and the image's configuration for the platform; removed at the end.

    Raises TandemError if the engine has not got the image for the platform.
    """
    from docker.errors import APIError

    from pipeline.host import containers

    client = engine.client()
    containers.remove_abandoned(client, CONTAINER_KIND)
    api, labels = client.api, {engine.LABEL: CONTAINER_KIND, containers.OWNER_LABEL: owners.current_owner()}
    options: dict[str, Any] = {"platform": platform, "labels": labels, "use_config_proxy": False}
    try:
        identity, named = api.create_container(name, **options)["Id"], True
    except APIError as error:
        if "no command specified" not in str(error.explanation).lower():
            raise TandemError(f"the engine makes no container of {name} for {platform}: {error.explanation}") from error
        identity, named = api.create_container(name, command=["none"], **options)["Id"], False
    try:
        config = api.inspect_container(identity)["Config"]
        pairs = [entry.partition("=") for entry in config.get("Env") or ()]
        yield (
            identity,
            ImageConfig(
                entrypoint=tuple(config.get("Entrypoint") or ()) if named else (),
                cmd=tuple(config.get("Cmd") or ()) if named else (),
                user=config.get("User") or "",
                workdir=config.get("WorkingDir") or "",
                env={key: value for key, _, value in pairs},
            ),
        )
    finally:
        api.remove_container(identity, v=True, force=True)


def export_files(identity: str) -> Iterator[bytes]:
    """The files of a container as a tar, in chunks. Raises TandemError, Cancelled."""
    with _engine_errors("reading the image's files"):
        for chunk in engine.client().api.export(identity, CHUNK_BYTES):
            if procs.cancelled():
                raise Cancelled("interrupted")
            yield chunk


def _pull(name: str, platform: str, log: Log) -> None:
    done: dict[str, int] = {}
    total: dict[str, int] = {}
    with _engine_errors(f"pulling {name}", name):
        for event in engine.client().api.pull(name, platform=platform, stream=True, decode=True):
            if procs.cancelled():
                raise Cancelled("interrupted")
            if "error" in event:
                raise registry_error(name, str(event["error"]))
            detail = event.get("progressDetail") or {}
            if detail.get("total") and event.get("status") == "Downloading":
                done[event["id"]], total[event["id"]] = detail.get("current", 0), detail["total"]
                log.progress("pull", sum(done.values()), sum(total.values()), "B")
            elif event.get("status") not in (None, "Waiting", "Downloading", "Extracting"):
                log.line(f"{event.get('id', '')} {event['status']}".strip())


@contextmanager
def _engine_errors(work: str, reference: str = "") -> Iterator[None]:
    """What the SDK raises, as ImageUnavailable where it tells of a registry (of `reference`), else as TandemError."""
    from docker.errors import APIError
    from requests.exceptions import Timeout

    with engine.failures(work, error=TandemError):
        try:
            yield
        except APIError as error:
            if not reference:
                raise
            raise registry_error(reference, error.explanation or str(error), error.status_code or 0) from error
        except Timeout as error:
            if not reference:
                raise
            raise registry_error(reference, "timeout: no answer came") from error
