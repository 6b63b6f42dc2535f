"""Downloads large files over HTTP. Keeps connections open, because a look-up of a name can take a second."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from pipeline.core import redact

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 30
"""The longest time without a byte."""


class UnreachableError(Exception):
    """No server answered, or the connection broke. Another try may succeed."""


class Downloader:
    """Connections that many threads share.

    `proxies` maps a scheme to a proxy's URL. Without it the proxies of the environment are used, and its no_proxy.
    """

    def __init__(self, proxies: Mapping[str, str] | None, connections: int) -> None:
        self._proxies, self._connections = proxies, connections
        self._pools: dict[str, PoolManager] = {}

    def close(self) -> None:
        """Closes every connection."""
        for pool in self._pools.values():
            pool.clear()

    @contextmanager
    def get(self, url: str, start: int) -> Iterator[tuple[int, Callable[[int], bytes]]]:
        """Requests a file from its byte `start` on; yields the HTTP status and a function that reads the body.

        The status is 206 if the server respects `start`. A file: URL gives 200 or 404. Raises UnreachableError, also
        from the function.
        """
        if url.startswith("file:"):
            with _open_local(url) as local:
                yield local
            return
        with _connection_errors(url):
            response = self._request(url, {"Range": f"bytes={start}-"} if start else {})

        def read(size: int) -> bytes:
            with _connection_errors(url):
                return response.read(size)

        try:
            yield response.status, read
        finally:
            # A connection can only be used again if it was read to its end.
            if response.length_remaining:
                response.close()
            response.release_conn()

    def _request(self, url: str, headers: Mapping[str, str]) -> "BaseHTTPResponse":
        from urllib3 import Retry, Timeout
        from urllib3.util import make_headers

        parts = urlsplit(url)
        credentials, _, host = parts.netloc.rpartition("@")
        extra = make_headers(basic_auth=unquote(credentials)) if credentials else {}
        return self._pool(parts.scheme, parts.hostname or "").request(
            "GET",
            urlunsplit(parts._replace(netloc=host)),
            headers={**headers, **extra},
            preload_content=False,
            decode_content=False,
            redirect=True,
            retries=Retry(total=None, connect=0, read=0, other=0, status=0, redirect=5),
            timeout=Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
        )

    def _pool(self, scheme: str, host: str) -> "PoolManager":
        from urllib3 import PoolManager, ProxyManager
        from urllib3.util import make_headers

        proxy = self._proxy(scheme, host)
        if proxy not in self._pools:
            if proxy:
                credentials = urlsplit(proxy).netloc.rpartition("@")[0]
                headers = make_headers(proxy_basic_auth=unquote(credentials)) if credentials else None
                pool: PoolManager = ProxyManager(proxy, proxy_headers=headers, maxsize=self._connections)
            else:
                pool = PoolManager(maxsize=self._connections)
            return self._pools.setdefault(proxy, pool)
        return self._pools[proxy]

    def _proxy(self, scheme: str, host: str) -> str:
        if self._proxies is not None:
            return self._proxies.get(scheme, "")
        if proxy_bypass(host):
            return ""
        proxies = getproxies()
        return proxies.get(scheme) or proxies.get("all") or ""


@contextmanager
def _connection_errors(url: str) -> Iterator[None]:
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (HTTPError, OSError) as error:
        raise UnreachableError(redact.clean(f"{url}: {getattr(error, 'reason', None) or error}")) from error


@contextmanager
def _open_local(url: str) -> Iterator[tuple[int, Callable[[int], bytes]]]:
    try:
        file = Path(unquote(urlsplit(url).path)).open("rb")  # noqa: SIM115  closed below
    except OSError:
        yield 404, io.BytesIO().read
        return
    with file:
        yield 200, file.read
