"""A smoked image in; registry/name@sha256:… out. Only what the registry lacks is sent."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core import procs
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.log import Log
from pipeline.host import engine, registry_errors
from pipeline.host.registry_errors import RegistryCause
from pipeline.registry import api

TRIES = 5


class Transient(TandemError):
    """A failure of the registry that a second try may not meet: a 5xx, a reset, an upload it lost."""


@dataclass(frozen=True)
class Pushed:
    """An image that a registry holds, proved by a look at the registry after the push."""

    address: str
    repository: str
    digest: str

    def __str__(self) -> str:
        return f"{self.address}/{self.repository}@{self.digest}"


def push(digest: str, platform: str, address: str, repository: str, tag: str, log: Log) -> Pushed:
    """Push the image `digest` of the local store as address/repository:tag, and prove it by a look.

    5xx answers, resets and lost uploads are tried again (5 times, 1 s to 30 s apart), refusals never.
    Raises TandemError; Unreachable if no registry answers.
    """
    pushed = Pushed(address, repository, digest)
    if api.missing(address, repository, digest) == () and api.head(address, repository, tag) == digest:
        log.line(f"{pushed} is there already")
        return pushed
    reference = f"{address}/{repository}:{tag}"
    if not engine.client().images.get(digest).tag(f"{address}/{repository}", tag):
        raise TandemError(f"the engine could not tag {digest} as {reference}")
    retried(lambda: _once(reference, log), log)
    _prove(pushed, tag, platform)
    log.line(f"{pushed} is pushed")
    return pushed


def pull(digest: str, platform: str, address: str, repository: str, tag: str, log: Log) -> None:
    """Bring an image that was pushed before back into the local store, and name it `tag` there.

    Raises TandemError if the registry has not got it, or if what came is not that digest.
    """
    if api.head(address, repository, digest) != digest:
        raise TandemError(f"the registry {address} has no {repository}@{digest}")
    log.line(f"pulling {address}/{repository}@{digest} …")
    with engine.session() as client, engine.failures(f"{address}/{repository}@{digest} cannot be pulled"):
        found = client.images.pull(f"{address}/{repository}", tag=digest, platform=platform)
        if found.id != digest:
            raise TandemError(f"the registry {address} gave {found.id} for {digest}")
        name, _, version = tag.rpartition(":")
        found.tag(name, version)


def retried(send: Callable[[], None], log: Log) -> None:
    """Do what may fail with Transient, up to 5 times, 1 s to 30 s apart. Raises what `send` raises, and Cancelled."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    def again(state: object) -> None:
        if procs.cancelled():
            raise Cancelled("interrupted")
        log.line(f"the push failed in a way that may pass; trying again: {getattr(state, 'outcome', None)}")

    Retrying(
        retry=retry_if_exception_type(Transient),
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(min=1, max=30),
        before_sleep=again,
        reraise=True,
    )(send)


def _once(reference: str, log: Log) -> None:
    sent: dict[str, int] = {}
    total: dict[str, int] = {}
    for event in engine.client().api.push(reference, stream=True, decode=True):
        if procs.cancelled():
            raise Cancelled("interrupted")
        if "error" in event:
            raise classify(reference, str(event["error"]))
        detail = event.get("progressDetail") or {}
        if detail.get("total"):
            sent[event["id"]], total[event["id"]] = detail.get("current", 0), detail["total"]
            log.progress("push", sum(sent.values()), sum(total.values()), "B")
        elif event.get("status") and event.get("status") not in ("Preparing", "Waiting"):
            log.line(f"{event.get('id', '')} {event['status']}".strip())


def classify(reference: str, said: str) -> TandemError:
    """The engine's words about a failed push, as an error that tells whether another try makes sense."""
    failed = f"{reference}: the push failed: {said}"
    match registry_errors.classify(said):
        case RegistryCause.DENIED:
            return TandemError(f"{reference}: the registry refuses the push: {said}", hint="log in with `docker login`")
        case RegistryCause.PLAIN_HTTP:
            return TandemError(f"{reference}: {registry_errors.PLAIN_HTTP}", hint=registry_errors.PLAIN_HTTP_HINT)
        case RegistryCause.INTERRUPTED | RegistryCause.SERVER_ERROR:
            return Transient(failed)
        case RegistryCause.UNREACHABLE:
            message = f"{reference}: no registry answers: {said}"
            return api.Unreachable(message, hint="`./doitw registry` starts the local one")
        case RegistryCause.RATE_LIMITED | RegistryCause.UNKNOWN_IMAGE | RegistryCause.OTHER:
            return TandemError(failed)


def _prove(pushed: Pushed, tag: str, platform: str) -> None:
    for reference in (pushed.digest, tag):
        found = api.head(pushed.address, pushed.repository, reference)
        if found != pushed.digest:
            raise TandemError(
                f"{pushed.address}/{pushed.repository}:{reference} is {found} after the push of {pushed.digest}"
            )
    offered = api.platforms(pushed.address, pushed.repository, pushed.digest)
    if offered != (platform,):
        raise TandemError(f"{pushed} offers {', '.join(offered) or 'no platform'} after the push, not {platform}")
