"""The way to a registry: in the clear where its engine would go so too, over TLS elsewhere; logins and redirects.

A password goes in the clear only to this machine's loopback, and to registries that the engine's own configuration
lists in insecure-registries. It never goes to another host that a registry redirects to.
"""

import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

from pipeline.core import http_client, redact
from pipeline.core.errors import TandemError
from pipeline.core.http_client import HttpResponse, TooLargeError
from pipeline.host import docker_config, engine, registry_errors

if TYPE_CHECKING:
    from ssl import SSLContext

START_HINT = "`./doitw registry` starts the local one, if pipeline.yaml says serve"
LOGIN_HINT = "log in with `docker login`"
ENGINE_CERTIFICATES = Path("/etc/docker/certs.d")
"""Folders by registry address with the certificates (*.crt) of authorities that the engine trusts."""
REDIRECTS = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 5
DEFAULT_PORTS = {"http": 80, "https": 443}


_WANT_LOGIN: set[str] = set()
"""The addresses of registries that asked for a login: the next requests bring it at once."""


class RegistryUnreachable(TandemError):
    """No registry answers at the address."""


class Server(NamedTuple):
    """Where a request goes."""

    scheme: str
    """http or https"""
    host: str
    port: int


def request(
    address: str,
    path: str,
    method: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    max_bytes: int = http_client.MAX_ANSWER_BYTES,
    log_in: bool = True,
) -> HttpResponse:
    """Makes one request to the registry at host:port.

    If the registry wants a login, the request is repeated with that of `docker login`, unless `log_in` is false. GET
    and HEAD follow redirects. Raises RegistryUnreachable; TandemError for an answer of more than `max_bytes`, or if the
    login is wanted and cannot be read.
    """
    server, given = server_of(address), dict(headers or {})
    try:
        answer = None
        if not (log_in and address in _WANT_LOGIN):
            answer = _follow(server, path, method, given, body, max_bytes)
            if not log_in or answer.status != HTTPStatus.UNAUTHORIZED:
                return answer
        login = _login_header(address)
        if answer is not None and not login:
            return answer
        return _follow(server, path, method, given | login, body, max_bytes)
    except TooLargeError as error:
        raise TandemError(f"the registry {address} answers {method} {path} with {error}") from error
    except (OSError, ValueError) as error:
        raise unreachable(address, error) from error


def head_statuses(address: str, paths: Sequence[str], headers: Mapping[str, str]) -> list[int]:
    """Returns the statuses that HEAD requests get, without following redirects. Raises as request()."""
    server = server_of(address)
    tls = _tls_context(address) if server.scheme == "https" else None

    def ask(more: Mapping[str, str]) -> list[int]:
        return http_client.head_statuses((server.host, server.port), paths, headers={**headers, **more}, tls=tls)

    try:
        statuses = [] if address in _WANT_LOGIN else ask({})
        if address in _WANT_LOGIN or HTTPStatus.UNAUTHORIZED in statuses:
            statuses = ask(_login_header(address))
        return statuses
    except (OSError, ValueError) as error:
        raise unreachable(address, error) from error


def find_login(address: str) -> tuple[str, str] | None:
    """Returns name and password for a registry. Raises TandemError if they cannot be read."""
    entry = docker_config.find_login(address)
    name, password = entry.get("username") or entry.get("Username"), entry.get("password") or entry.get("Password")
    if not name or not password:
        return None
    redact.register_login(name, password)
    return name, password


def server_of(address: str) -> Server:
    """Returns where the registry at host:port is asked, and how."""
    host, _, port = address.rpartition(":")
    in_the_clear = http_client.is_loopback(address) or _is_insecure(address)
    return Server("http" if in_the_clear else "https", host.strip("[]"), int(port))


def unreachable(address: str, error: Exception) -> RegistryUnreachable:
    """Returns the error for a registry that cannot be asked, with the cause and what to do about it."""
    hint = START_HINT if http_client.is_loopback(address) else ""
    if type(error).__module__ == "ssl":
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            folder = ENGINE_CERTIFICATES / address
            hint = f"put the certificate of its authority into {folder}/ca.crt, where the engine looks for it too"
        elif "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
            return RegistryUnreachable(f"{address}: {registry_errors.PLAIN_HTTP}", hint=registry_errors.PLAIN_HTTP_HINT)
    return RegistryUnreachable(f"no registry answers at {address}: {error}", hint=hint)


def _is_insecure(address: str) -> bool:
    """Returns whether the engine's insecure-registries have the address; not if no engine answers."""
    try:
        return _listed_as_insecure(address)
    except TandemError:
        return False


@lru_cache
def _listed_as_insecure(address: str) -> bool:
    """Returns whether the engine's insecure-registries have the address, by name or as a network.

    Raises as engine.get(). An engine that does not answer may be started later, so that is not remembered.
    """
    from ipaddress import ip_address, ip_network
    from socket import getaddrinfo

    config = (engine.get("local", "/info") or {}).get("RegistryConfig") or {}
    entry = (config.get("IndexConfigs") or {}).get(address)
    if entry is not None:
        return not entry.get("Secure", True)
    host, _, port = address.rpartition(":")
    networks = [ip_network(cidr) for cidr in config.get("InsecureRegistryCIDRs") or ()]
    try:
        found = {str(info[4][0]) for info in getaddrinfo(host.strip("[]"), int(port))}
    except OSError:
        return False
    return any(ip_address(ip) in network for ip in found for network in networks)


def _follow(
    server: Server, path: str, method: str, headers: Mapping[str, str], body: bytes | None, max_bytes: int
) -> HttpResponse:
    """Returns the answer at the end of the redirects; the login is not given to another server."""
    registry = server
    for _ in range(MAX_REDIRECTS + 1):
        known = headers if server == registry else {k: v for k, v in headers.items() if k != "Authorization"}
        tls = _tls_context(f"{server.host}:{server.port}") if server.scheme == "https" else None
        answer = http_client.request(
            (server.host, server.port), path, method=method, headers=known, body=body, max_bytes=max_bytes, tls=tls
        )
        if answer.status not in REDIRECTS or method not in ("GET", "HEAD") or "location" not in answer.headers:
            return answer
        server, path = _redirected(server, path, answer.headers["location"])
    raise ValueError(f"more than {MAX_REDIRECTS} redirects")


def _redirected(server: Server, path: str, location: str) -> tuple[Server, str]:
    """Returns server and path of a redirect. Raises ValueError for one that does not lead on, or out of TLS."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    url = urlsplit(urljoin(f"{server.scheme}://{host}:{server.port}{path}", location))
    if url.scheme not in DEFAULT_PORTS or not url.hostname:
        raise ValueError(f"it redirects to {location!r}")
    if server.scheme == "https" and url.scheme == "http":
        raise ValueError(f"it redirects out of TLS, to {url.hostname}")
    target = Server(url.scheme, url.hostname, url.port or DEFAULT_PORTS[url.scheme])
    return target, (url.path or "/") + (f"?{url.query}" if url.query else "")


@lru_cache
def _tls_context(address: str) -> "SSLContext":
    """Returns a context that trusts the system's authorities, and those of the engine for this registry."""
    import ssl

    context = ssl.create_default_context()
    for file in sorted((ENGINE_CERTIFICATES / address).glob("*.crt")):
        context.load_verify_locations(file)
    return context


def _login_header(address: str) -> dict[str, str]:
    """Returns the header that logs in, for a registry that asked for it; none if there is no login."""
    # Read only now: reading Docker's configuration takes longer than a look does.
    login = find_login(address)
    if login is None:
        return {}
    _WANT_LOGIN.add(address)
    return {"Authorization": f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"}
