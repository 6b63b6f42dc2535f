"""Stage push: an image that passed smoke in, registry/name@sha256:… out. Only what the registry lacks is sent."""

from msgspec import Struct

from pipeline.core import procs
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.log import Log
from pipeline.host import docker_config, engine, registry_errors
from pipeline.host.registry_errors import RegistryCause
from pipeline.registry import api
from pipeline.registry.retry import Transient, retry_transient
from pipeline.registry.transport import LOGIN_HINT, START_HINT, RegistryUnreachable


class SmokedImage(Struct, frozen=True):
    """An image of the local store that passed its smoke checks."""

    digest: str
    platform: str
    """os/architecture"""


class Pushed(Struct, frozen=True):
    """An image that a registry holds, as a look after the push proved."""

    address: str
    """host:port of the registry"""
    repository: str
    digest: str
    tag: str

    def __str__(self) -> str:
        return f"{self.address}/{self.repository}@{self.digest}"


def push(image: SmokedImage, address: str, repository: str, tag: str, log: Log) -> Pushed:
    """Pushes an image of the local store as address/repository:tag, and verifies that the registry has it.

    Server errors, resets and lost uploads are retried (5 tries, 1 s to 30 s apart), refusals are not.
    Raises RegistryUnreachable, TandemError.
    """
    digest = image.digest
    pushed = Pushed(address, repository, digest, tag)
    if api.missing_parts(address, repository, digest) == () and api.find_digest(address, repository, tag) == digest:
        log.line(f"{pushed} is there already")
        return pushed
    reference = f"{address}/{repository}:{tag}"
    with engine.session() as client, engine.failures(f"{digest} cannot be tagged as {reference}"):
        client.images.get(digest).tag(f"{address}/{repository}", tag)
    login = _Login(address, log)
    retry_transient(lambda: _push_once(reference, login, log), log)
    _verify(pushed, image.platform)
    log.line(f"{pushed} is pushed")
    return pushed


def pull_image(digest: str, platform: str, address: str, repository: str, tag: str, log: Log) -> None:
    """Pulls an image that was pushed before into the local store, and names it `tag` there.

    Raises TandemError if the registry does not have it, or gives another digest.
    """
    name = f"{address}/{repository}@{digest}"
    if api.find_digest(address, repository, digest) != digest:
        raise TandemError(f"the registry {address} does not have {repository}@{digest}")
    log.line(f"pulling {name} …")
    with engine.session() as client, engine.failures(f"{name} cannot be pulled"):
        auth = _Login(address, log).auth
        pulled = client.images.pull(f"{address}/{repository}", tag=digest, platform=platform, auth_config=auth)
        if pulled.id != digest:
            raise TandemError(f"the registry {address} gave {pulled.id} for {digest}")
        local_name, _, local_tag = tag.rpartition(":")
        pulled.tag(local_name, local_tag)


def push_error(reference: str, message: str) -> TandemError:
    """Returns the error for an engine's message about a failed push: Transient if another try may succeed."""
    failed = f"{reference}: the push failed: {message}"
    match registry_errors.classify(message):
        case RegistryCause.DENIED:
            refused = f"{reference}: the registry refuses the push: {message}"
            return TandemError(refused, hint=LOGIN_HINT)
        case RegistryCause.PLAIN_HTTP:
            return TandemError(f"{reference}: {registry_errors.PLAIN_HTTP}", hint=registry_errors.PLAIN_HTTP_HINT)
        case RegistryCause.INTERRUPTED | RegistryCause.SERVER_ERROR:
            return Transient(failed)
        case RegistryCause.UNREACHABLE:
            return RegistryUnreachable(f"{reference}: no registry answers: {message}", hint=START_HINT)
        case RegistryCause.RATE_LIMITED | RegistryCause.UNKNOWN_IMAGE | RegistryCause.OTHER:
            return TandemError(failed)


class _Login:
    """The login that the engine gets for a registry; empty if it cannot be read, as many registries want none."""

    def __init__(self, address: str, log: Log) -> None:
        self.auth: dict[str, str] = {}
        self.error: TandemError | None = None
        """Why it cannot be read."""
        try:
            self.auth = docker_config.find_login(address)
        except TandemError as error:
            log.line(f"without a login: {error}")
            self.error = error


def _push_once(reference: str, login: _Login, log: Log) -> None:
    sent: dict[str, int] = {}
    total: dict[str, int] = {}
    with engine.session() as client:
        for event in client.api.push(reference, stream=True, decode=True, auth_config=login.auth):
            if procs.cancelled():
                raise Cancelled("interrupted")
            if "error" in event:
                message = str(event["error"])
                if login.error and registry_errors.classify(message) is RegistryCause.DENIED:
                    raise login.error
                raise push_error(reference, message)
            detail = event.get("progressDetail") or {}
            if detail.get("total"):
                sent[event["id"]], total[event["id"]] = detail.get("current", 0), detail["total"]
                log.progress("push", sum(sent.values()), sum(total.values()), "B")
            elif event.get("status") and event.get("status") not in ("Preparing", "Waiting"):
                log.line(f"{event.get('id', '')} {event['status']}".strip())


def _verify(pushed: Pushed, platform: str) -> None:
    """Raises TandemError if the registry does not have the image under digest and tag, for this platform alone."""
    for reference in (pushed.digest, pushed.tag):
        digest = api.find_digest(pushed.address, pushed.repository, reference)
        if digest != pushed.digest:
            raise TandemError(
                f"{pushed.address}/{pushed.repository}:{reference} is {digest} after the push of {pushed.digest}"
            )
    platforms = api.list_platforms(pushed.address, pushed.repository, pushed.digest)
    if platforms != (platform,):
        raise TandemError(f"{pushed} offers {', '.join(platforms) or 'no platform'} after the push, not {platform}")
