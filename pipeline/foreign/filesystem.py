"""A root filesystem as a view: one pass over the tar stream of an export in, every path and the small files wanted out.

Nothing is written, nothing of the image runs, and links lead where they would lead inside the image.
"""

import io
import posixpath
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.core.errors import TandemError

Kind = Literal["file", "dir", "link", "other"]
KeepRule = tuple[re.Pattern[str], int | re.Pattern[bytes]]
"""Files whose path matches: keep so many of the first bytes, or the first match of the second pattern in the file."""

MAX_LINKS = 40
"""Linux follows no more links in one path (path_resolution(7))."""
MAX_SCRIPT_BYTES = 64 << 10
ELF_HEADER_BYTES = 20  # bytes of an ELF file up to and with its machine
BLOCK_BYTES = 1 << 20
MAX_PATHS = 4_000_000
MAX_KEPT_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Node:
    """A path's kind, permission bits, size in bytes, link target as written, and as much content as was kept."""

    kind: Kind
    mode: int
    size: int = 0
    target: str = ""
    content: bytes = b""


class FilesystemView:
    """A root filesystem; paths are absolute, by text, and inside it; bytes that are not UTF-8 are surrogates."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = nodes
        self._children: dict[str, list[str]] = {}
        for path in nodes:
            parent, _, name = path.rpartition("/")
            self._children.setdefault(parent or "/", []).append(name)

    def resolve(self, path: str) -> str | None:
        """Where a path leads with every link followed, as inside the image; None if there is nothing.

        Raises TandemError for a loop of links.
        """
        left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        at, links = "/", 0
        while left:
            part = left.pop()
            if part == "..":
                at = posixpath.dirname(at)
                continue
            here = posixpath.join(at, part)
            node = self.nodes.get(here)
            if node is None:
                return None
            if node.kind != "link":
                at = here
                continue
            links += 1
            if links > MAX_LINKS:
                raise TandemError(f"{path}: its links lead round in a circle", hint="the image is broken there")
            at = "/" if node.target.startswith("/") else at
            left += [part for part in reversed(node.target.split("/")) if part not in ("", ".")]
        return at

    def find(self, path: str) -> Node | None:
        """What a path leads to; None if that is nothing, or a loop."""
        try:
            found = self.resolve(path)
        except TandemError:
            return None
        return self.nodes.get(found) if found else None

    def is_dir(self, path: str) -> bool:
        """Whether a path leads to a folder."""
        node = self.find(path)
        return path == "/" or (node is not None and node.kind == "dir")

    def is_program(self, path: str) -> bool:
        """Whether a path leads to a file that somebody may execute."""
        node = self.find(path)
        return node is not None and node.kind == "file" and bool(node.mode & 0o111)

    def content(self, path: str) -> bytes:
        """What was kept of the file that a path leads to; nothing if it is not there."""
        node = self.find(path)
        return node.content if node else b""

    def text(self, path: str) -> str:
        """The same as text."""
        return self.content(path).decode("utf-8", "replace")

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; none if there is no such folder."""
        try:
            found = self.resolve(folder)
        except TandemError:
            return ()
        return tuple(sorted(self._children.get(found, ()))) if found else ()

    def files(self, name: re.Pattern[str]) -> Iterator[str]:
        """The paths, sorted, of all files (no links) whose last part matches as a whole."""
        for path in sorted(self.nodes):
            if self.nodes[path].kind == "file" and name.fullmatch(path.rpartition("/")[2]):
                yield path


def read_tar(
    stream: Iterable[bytes], rules: Iterable[KeepRule], seen: Callable[[int], None] = lambda _: None
) -> FilesystemView:
    """The filesystem in a tar stream; `seen` is told now and then how many bytes have passed.

    Besides what the rules ask for, the beginning of every executable file is kept: all of a script up to SCRIPT bytes,
    else HEADER bytes. Raises TandemError for a stream that is no tar, breaks off, or leads out of the root.
    """
    rules = tuple(rules)
    nodes: dict[str, Node] = {}
    kept = 0
    try:
        file = _ChunkReader(stream, seen)
        with tarfile.open(
            fileobj=file, mode="r|", bufsize=BLOCK_BYTES, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else it keeps every header until the end
                path = _member_path(member.name)
                if path == "/":
                    continue
                nodes[path] = _member_node(tar, member, path, nodes, rules)
                kept += len(nodes[path].content)
                if kept > MAX_KEPT_BYTES or len(nodes) > MAX_PATHS:
                    raise TandemError(f"the image holds more than is read of one: {len(nodes)} paths at {path!r}")
    except tarfile.TarError as error:
        raise TandemError(f"the export of the image cannot be read: {error}", hint="try again") from error
    for path in list(nodes):
        while (path := posixpath.dirname(path)) not in nodes and path != "/":
            nodes[path] = Node("dir", 0o755)  # not every tar names the folders of its files
    return FilesystemView(nodes)


def _member_path(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise TandemError(f"the image has an entry that leads out of its root: {name!r}", hint="do not use this image")
    return "/" + "/".join(parts)


def _member_node(
    tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, nodes: Mapping[str, Node], rules: Iterable[KeepRule]
) -> Node:
    mode = stat.S_IMODE(member.mode)
    if member.isdir():
        return Node("dir", mode)
    if member.issym():
        return Node("link", mode, target=member.linkname)
    if member.islnk():
        return nodes.get(_member_path(member.linkname)) or Node("other", mode)
    if not member.isreg():
        return Node("other", mode)
    return Node("file", mode, member.size, content=_kept_content(tar, member, path, rules))


def _kept_content(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, rules: Iterable[KeepRule]) -> bytes:
    wanted = next((wanted for pattern, wanted in rules if pattern.search(path)), None)
    if wanted is None and not member.mode & 0o111:
        return b""
    file = tar.extractfile(member)
    if file is None or not member.size:
        return b""
    if isinstance(wanted, int):
        return file.read(wanted)
    if wanted is not None:
        return _first_match(iter(lambda: file.read(BLOCK_BYTES), b""), wanted)
    start = file.read(ELF_HEADER_BYTES)
    return start + file.read(MAX_SCRIPT_BYTES - ELF_HEADER_BYTES) if start.startswith(b"#!") else start


def _first_match(blocks: Iterator[bytes], wanted: re.Pattern[bytes]) -> bytes:
    before = b""
    for block in blocks:
        if match := wanted.search(before + block):
            return match[0]
        before = block[-256:]
    return b""


class _ChunkReader(io.RawIOBase):
    """Chunks of any size as a file that can only be read on."""

    def __init__(self, chunks: Iterable[bytes], seen: Callable[[int], None]) -> None:
        self._chunks = iter(chunks)
        self._seen = seen
        self._left = b""
        self._total = 0

    def read(self, size: int | None = -1) -> bytes:
        size = BLOCK_BYTES if size is None or size < 0 else size
        parts, have = [self._left], len(self._left)
        while have < size and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            have += len(chunk)
            self._total += len(chunk)
            self._seen(self._total)
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]
