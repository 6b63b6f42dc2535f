"""The by-hash store, against a real HTTP server that misbehaves on purpose."""

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.core import procs, store
from pipeline.core.errors import Cancelled, HostError, TandemError
from pipeline.core.log import Log, NullLog

CONTENT = bytes(range(256)) * 4000
HEX = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Mirror:
    """What the server does with the next requests ("503", "cut", "404", "plain"), and what it was asked."""

    plan: list[str] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    connections: int = 0
    url: str = ""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    state = Mirror()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            state.connections += 1
            super().setup()

        def do_GET(self) -> None:  # the name that http.server asks for
            deed = state.plan.pop(0) if state.plan else "whole"
            asked = self.headers.get("Range")
            state.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and deed != "plain" else 0
            if deed.isdigit():
                self.send_error(int(deed))
                return
            self.send_response(206 if start else 200)
            body = state.files.get(self.path, CONTENT)[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if deed == "cut" else body[::-1] if deed == "wrong" else body)
            self.close_connection = deed == "cut"

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/pool/a.deb"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


def fetch(url: str, sha256: str = HEX, log: Log | None = None, proxies: dict[str, str] | None = None) -> Path:
    """Fetches one file."""
    item = store.Download(url.rsplit("/", 1)[-1], (url,), sha256, len(CONTENT))
    return store.fetch_all([item], log or NullLog(), title=item.name, proxies=proxies)[sha256]


def test_a_file_is_fetched_once_and_lies_under_its_hash(mirror: Mirror, cache: Path) -> None:
    first = fetch(mirror.url)
    second = fetch(mirror.url)
    assert first == second == cache / "tandem/sha256" / HEX == store.stored_file(HEX)
    assert first.read_bytes() == CONTENT
    assert len(mirror.ranges) == 1
    assert list((cache / "tandem/partial").iterdir()) == []


def test_a_broken_download_continues_where_it_broke(mirror: Mirror) -> None:
    mirror.plan = ["cut"]
    assert fetch(mirror.url).read_bytes() == CONTENT
    assert mirror.ranges == [None, f"bytes={len(CONTENT) // 2}-"]


def test_a_server_that_ignores_ranges_does_not_spoil_the_file(mirror: Mirror) -> None:
    mirror.plan = ["cut", "plain"]
    assert fetch(mirror.url).read_bytes() == CONTENT


@pytest.mark.parametrize("status", ["500", "502", "503", "504", "429"])
def test_a_temporary_failure_is_tried_again(mirror: Mirror, status: str) -> None:
    mirror.plan = [status]
    fetch(mirror.url)
    assert len(mirror.ranges) == 2


@pytest.mark.parametrize("status", ["401", "403", "404"])
def test_a_lasting_failure_is_not_tried_again(mirror: Mirror, status: str) -> None:
    mirror.plan = [status]
    with pytest.raises(store.MissingFileError, match=f"answers {status}"):
        fetch(mirror.url)
    assert len(mirror.ranges) == 1


def test_the_next_address_is_asked_when_one_does_not_have_it(mirror: Mirror) -> None:
    mirror.plan = ["404"]
    item = store.Download("a", (mirror.url, mirror.url), HEX, len(CONTENT))
    assert store.fetch_all([item], NullLog(), title="files")[HEX].read_bytes() == CONTENT


def test_other_bytes_than_the_locks_never_enter_the_store(mirror: Mirror) -> None:
    mirror.plan = ["wrong"]
    with pytest.raises(store.MissingFileError, match="other bytes"):
        fetch(mirror.url)
    assert store.stored_file(HEX) is None


def test_a_file_that_was_damaged_on_disk_is_fetched_again(mirror: Mirror) -> None:
    path = fetch(mirror.url)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch(mirror.url).read_bytes() == CONTENT


def test_a_mirror_that_does_not_answer_is_one_message(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TRIES", 1)
    with pytest.raises(TandemError, match="refused"):
        fetch("http://127.0.0.1:9/a.deb")


def test_a_local_mirror_is_an_address_too(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(CONTENT)
    assert fetch(f"file://{tmp_path}/a.deb").read_bytes() == CONTENT
    with pytest.raises(store.MissingFileError, match=r"b\.deb"):
        fetch(f"file://{tmp_path}/b.deb", HEX[::-1])


def test_connections_are_kept(mirror: Mirror, tmp_path: Path) -> None:
    items = []
    for number in range(20):
        content = bytes([number]) * 10
        mirror.files[f"/{number}"] = content
        url = mirror.url.replace("/pool/a.deb", f"/{number}")
        items.append(store.Download(str(number), (url,), hashlib.sha256(content).hexdigest(), 10))
    assert len(store.fetch_all(items, NullLog(), title="files")) == 20
    assert mirror.connections <= store.WORKERS


def test_a_full_or_forbidden_disk_is_one_message(mirror: Mirror, cache: Path) -> None:
    (cache / "tandem").mkdir(parents=True)
    (cache / "tandem/partial").touch()
    with pytest.raises(TandemError, match="partial: File exists"):
        fetch(mirror.url)


def test_a_proxy_of_apt_is_used(mirror: Mirror) -> None:
    proxy = mirror.url.removesuffix("/pool/a.deb")
    got = fetch("http://nowhere.invalid/pool/a.deb", proxies={"http": proxy})
    assert got.read_bytes() == CONTENT


def test_an_interrupted_run_stops_fetching(mirror: Mirror) -> None:
    procs.cancel()
    try:
        with pytest.raises(Cancelled):
            fetch(mirror.url)
    finally:
        procs.resume()


def test_progress_counts_bytes_of_all_files_together(mirror: Mirror) -> None:
    log = NullLog()
    fetch(mirror.url, log=log)
    fetch(mirror.url, log=log)
    assert log.lines == ["a.deb: 1.0 MB, 1.0 MB fetched", "a.deb: 1.0 MB, all of it was in the store"]


def test_a_cache_that_is_not_a_folder_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(HostError, match="Not a directory") as caught:
        fetch("http://127.0.0.1:1/x", "0" * 64)
    assert f"kept in {tmp_path}/file/tandem" in caught.value.hint
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_a_cache_by_a_relative_path_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert store.folder() == Path.home() / ".cache/tandem/sha256"


def test_a_waiter_on_a_failed_download_has_the_partial_file_to_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "tandem" / "partial" / HEX
    same: list[bool] = []
    waits = threading.Event()

    def second() -> None:
        waits.set()
        with store._open_partial(HEX) as part:
            same.append(place.exists() and os.path.samestat(os.fstat(part.fileno()), place.stat()))

    waiter = threading.Thread(target=second)
    with store._open_partial(HEX):
        waiter.start()
        waits.wait(20)
        waiter.join(0.3)
        assert waiter.is_alive()
    waiter.join(20)
    assert same == [True]


@pytest.mark.parametrize("deed", ["403", "wrong"])
def test_no_failure_names_the_login_of_an_address(mirror: Mirror, deed: str) -> None:
    mirror.plan = [deed]
    url = mirror.url.replace("http://", "http://me:s3cr3t@")
    with pytest.raises(store.MissingFileError) as caught:
        store.fetch_all([store.Download("a", (url,), HEX, len(CONTENT))], NullLog(), title="a")
    assert "***@127.0.0.1" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_no_failure_names_the_login_of_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TRIES", 1)
    with pytest.raises(store.MissingFileError) as caught:
        store.fetch_all([store.Download("a", ("http://me:s3cr3t@127.0.0.1:1/a",), HEX, 1)], NullLog(), title="a")
    assert "***@127.0.0.1" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
