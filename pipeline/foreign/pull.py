"""Resolves an image's name to a digest, has the engine pull it, and reads what it holds. Nothing of the image runs.

The engine asks the registry, with the credentials of Docker's own configuration and credential helpers. So whatever
`docker pull` can get is available here.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct, json
from msgspec.structs import replace

from pipeline.core import owners, procs
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.log import Log, step
from pipeline.foreign import filesystem, inspection
from pipeline.foreign.facts import ImageFacts
from pipeline.foreign.inspection import ImageConfig
from pipeline.host import docker_config, engine, registry_errors
from pipeline.host.registry_errors import RegistryCause

if TYPE_CHECKING:
    from docker.errors import APIError

CONTAINER_KIND = "reader"
"""The value of our label on the containers that are made here."""
CHUNK_BYTES = 1 << 20
REGISTRY_TIMEOUT_S = 60


class ImageUnavailable(TandemError):
    """The registry does not give an image: it cannot be reached, does not have it, or wants a login."""


class ImageMissing(TandemError):
    """The engine does not have an image for a platform."""


def resolve_digest(reference: str, platform: str, log: Log) -> str:
    """Returns the digest (sha256:…) of the manifest or index that NAME:TAG or NAME@digest has in its registry.

    If the registry does not give it, this engine's own image of that name counts, and the log says so. Raises
    ImageUnavailable; TandemError if the image is not for the platform ("linux/arm64"), with those that it is for.
    """
    pinned = reference.partition("@")[2]
    if pinned and _is_held(reference, platform):
        return pinned
    try:
        answer = _ask_registry(reference)
    except ImageUnavailable as error:
        digest = _local_digest(reference, platform)
        if not digest:
            raise
        log.step(f"{error}")
        log.step(f"{reference} is used as this engine has it: {digest}")
        return digest
    digest = str(answer["Descriptor"]["digest"])
    # An attestation is listed as unknown/unknown. For a single manifest the engine gives no list here.
    offers = sorted({f"{item.get('os')}/{item.get('architecture')}" for item in answer.get("Platforms") or ()})
    offers = [offer for offer in offers if offer != "unknown/unknown"]
    if offers and _without_variant(platform) not in offers:
        raise _platform_error(reference, platform, ", ".join(offers))
    log.line(f"{reference} is {digest}")
    return digest


def pull_image(reference: str, digest: str, platform: str, log: Log) -> None:
    """Makes the engine pull an image for a platform, unless it already has it.

    Raises ImageUnavailable, TandemError, Cancelled.
    """
    name = f"{repository_of(reference)}@{digest}"
    if _is_held(name, platform):
        log.line(f"{name} is already in the engine")
        return
    with step(log, f"pulling {name} for {platform}"):
        _pull(name, platform, log)
    if not _is_held(name, platform):
        described = engine.find_image("local", name) or {}
        raise _platform_error(name, platform, f"{described.get('Os')}/{described.get('Architecture')}")


class ImageScan(Struct, frozen=True):
    """What was read of an image."""

    facts: ImageFacts
    paths: tuple[bytes, ...]
    """All paths below the root, each behind "d " for a folder, "l " for a link or "f " for anything else.

    They are bytes, since names in an image need not be UTF-8.
    """


def read_image(reference: str, digest: str, platform: str, log: Log) -> ImageScan:
    """Returns what an image in the engine holds, in one pass over the export of a container that never starts.

    Raises TandemError for an image that cannot be built on, Cancelled.
    """
    name = f"{repository_of(reference)}@{digest}"
    refuse_onbuild(name)
    with step(log, f"reading {name}"):
        config = _image_config(name, platform)
        # The engine would create WORKDIR in the container if no layer has it.
        with created_container(name, platform, working_dir="/") as (identity, _):
            view = filesystem.read_tar(
                export_files(identity), inspection.RULES, lambda done: log.progress("read", done, None, "B")
            )
            layers = _diff_ids(name, platform, identity)
        log.line(f"{len(view.nodes)} paths")
        try:
            facts = replace(inspection.inspect_image(view, config, digest, platform), layers=layers)
            json.encode(facts)
        except TandemError as error:
            raise TandemError(f"{reference}: {error}", hint=error.hint) from error
        except UnicodeEncodeError as error:
            raise TandemError(f"{reference}: a name in it that matters here is not UTF-8: {error.object!r}") from error
        paths = (f"{node.kind[0]} {path[1:]}" for path, node in view.nodes.items())
        return ImageScan(facts, tuple(sorted(path.encode("utf-8", "surrogateescape") for path in paths)))


def _diff_ids(name: str, platform: str, identity: str) -> tuple[str, ...]:
    """Returns the diff_ids of an image; `identity` is a container of it that never started.

    Of an index, the engine describes only the image for its own machine. For another platform, an image committed from
    the container has exactly the layers of the container's platform, since nothing was changed (seen with Docker 26.1,
    which commits no image of Docker's manifest type with zstd layers). Raises TandemError.
    """
    described = engine.find_image("local", name) or {}
    if f"{described.get('Os')}/{described.get('Architecture')}" == _without_variant(platform):
        return tuple(described["RootFS"]["Layers"])
    client = engine.client()
    with _engine_errors(f"reading the layers of {name} for {platform}"):
        committed = client.api.commit(identity)["Id"]
        try:
            described = engine.find_image("local", committed) or {}
        finally:
            client.images.remove(committed, force=True)
    return tuple(described["RootFS"]["Layers"])


def repository_of(reference: str) -> str:
    """Returns an image's name without tag and digest."""
    head, slash, last = reference.partition("@")[0].rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def _ask_registry(reference: str) -> Mapping[str, Any]:
    """Returns the registry's description of an image, through the engine (GET /distribution/{name}/json)."""
    api = engine.client(timeout_s=REGISTRY_TIMEOUT_S).api
    with _engine_errors("asking a registry", reference), docker_config.config_errors():
        answer: Mapping[str, Any] = api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
    return answer


def registry_error(reference: str, message: str, status: int = 0) -> ImageUnavailable:
    """Returns the failure that an engine's message about a registry tells of; `status` is that of its own answer."""
    host, slash, _ = reference.partition("/")
    has_host = bool(slash and re.search(r"[.:]|^localhost$", host))
    hub, login = (host, f"`docker login {host}`") if has_host else ("Docker Hub", "`docker login`")
    why = message.strip().rstrip(".")
    match registry_errors.classify(message, status):
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
    """Returns os/architecture, without a variant."""
    return "/".join(platform.split("/")[:2])


def _local_digest(reference: str, platform: str) -> str:
    """Returns the digest of the engine's own image of a name; empty if there is none. Raises as resolve_digest()."""
    described = engine.find_image("local", reference)
    if described is None:
        return ""
    name = repository_of(reference)
    digests = [entry.rpartition("@") for entry in described.get("RepoDigests") or ()]
    digest = next((digest for held, _, digest in digests if held == name), digests[0][2] if digests else "")
    if digest and not _is_held(reference, platform):
        raise _platform_error(
            reference, platform, f"{described['Os']}/{described['Architecture']}, as this engine has it"
        )
    return digest


def _is_held(name: str, platform: str) -> bool:
    """Returns whether the engine has an image for a platform; only making a container tells. Raises TandemError."""
    if engine.find_image("local", name) is None:
        return False
    try:
        with created_container(name, platform):
            return True
    except ImageMissing:
        return False


def _container_error(name: str, platform: str, error: "APIError") -> TandemError:
    """Returns the failure to report when no container of an image can be created."""
    message = f"the engine cannot create a container of {name} for {platform}: {error.explanation}"
    if error.status_code == 404 or "not found" in str(error.explanation):
        return ImageMissing(message)
    # containerd/containerd#9263
    zstd = "its layers are zstd under Docker's manifest type, which this engine cannot unpack: use one with OCI's"
    return TandemError(message, hint=zstd if "mismatched image rootfs" in str(error.explanation) else "")


@contextmanager
def created_container(name: str, platform: str, **options: Any) -> Iterator[tuple[str, bool]]:
    """Yields the id of a container that never starts, and whether the image has a command of its own.

    `options` are those of the SDK's create_container(). The container is removed at the end. Raises ImageMissing if the
    engine does not have the image for the platform, TandemError if it cannot use it.
    """
    from docker.errors import APIError

    from pipeline.host import containers

    client = engine.client()
    containers.remove_abandoned(client, CONTAINER_KIND)
    api, labels = client.api, {engine.LABEL: CONTAINER_KIND, containers.OWNER_LABEL: owners.current_owner()}
    options |= {"platform": platform, "labels": labels, "use_config_proxy": False}
    try:
        try:
            identity, has_command = api.create_container(name, **options)["Id"], True
        except APIError as error:
            if "no command specified" not in str(error.explanation).lower():
                raise
            identity, has_command = api.create_container(name, command=["none"], **options)["Id"], False
    except APIError as error:
        raise _container_error(name, platform, error) from error
    try:
        yield identity, has_command
    finally:
        api.remove_container(identity, v=True, force=True)


def _image_config(name: str, platform: str) -> ImageConfig:
    """Returns an image's configuration. Raises TandemError if the engine does not have it for the platform."""
    with created_container(name, platform) as (identity, has_command), _engine_errors(f"reading {name}"):
        config = engine.client().api.inspect_container(identity)["Config"]
    pairs = [entry.partition("=") for entry in config.get("Env") or ()]
    return ImageConfig(
        entrypoint=tuple(config.get("Entrypoint") or ()) if has_command else (),
        cmd=tuple(config.get("Cmd") or ()) if has_command else (),
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "",
        env={key: value for key, _, value in pairs},
        healthcheck=_has_healthcheck(config),
    )


def _has_healthcheck(config: Mapping[str, Any]) -> bool:
    test = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    return bool(test[0] != "NONE")


def refuse_onbuild(name: str) -> None:
    """Raises TandemError if an image has ONBUILD instructions, which would run in every build on top of it.

    Of an index, the engine tells those of the image for its own machine.
    """
    described = engine.find_image("local", name) or {}
    if instructions := (described.get("Config") or {}).get("OnBuild"):
        raise TandemError(
            f"{name} has instructions for builds on top of it (ONBUILD {'; ONBUILD '.join(instructions)})",
            hint="use the image without them, or flatten this one: docker export, then docker import --change",
        )


def export_files(identity: str) -> Iterator[bytes]:
    """Yields the files of a container as a tar, in chunks. Raises TandemError, Cancelled."""
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
    """Turns what the SDK raises into TandemError; into ImageUnavailable for a registry's answer about `reference`."""
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
