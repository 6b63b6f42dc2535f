"""Reads the tar stream of an exported root filesystem in one pass, and keeps every path and some files' content.

Nothing is written and nothing of the image runs. Links lead where they would lead inside the image.
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
"""For files whose path matches the first pattern: how many bytes to keep, or a pattern whose first match is kept."""

MAX_LINKS = 40
"""Linux does not follow more links in one path (path_resolution(7))."""
MAX_SCRIPT_BYTES = 64 << 10
ELF_HEADER_BYTES = 20
"""The beginning of an ELF file, up to its field e_machine."""
BLOCK_BYTES = 1 << 20
MAX_PATHS = 4_000_000
MAX_KEPT_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at a path."""

    kind: Kind
    mode: int
    """The permission bits."""
    size: int = 0
    """The file's size in bytes."""
    target: str = ""
    """The link's target, as it is written."""
    content: bytes = b""
    """The part of the file's content that was kept."""


class FilesystemView:
    """A root filesystem by its absolute paths. Bytes of a path that are not UTF-8 are surrogates."""

    def __init__(self, nodes: Mapping[str, Entry]) -> None:
        self.nodes = nodes
        self._children: dict[str, list[str]] = {}
        for path in nodes:
            parent, _, name = path.rpartition("/")
            self._children.setdefault(parent or "/", []).append(name)

    def resolve(self, path: str) -> str | None:
        """Returns where a path leads inside the image with every link followed; None if nothing is there.

        Raises TandemError for a loop of links.
        """
        left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        current, links = "/", 0
        while left:
            part = left.pop()
            if part == "..":
                current = posixpath.dirname(current)
                continue
            candidate = posixpath.join(current, part)
            node = self.nodes.get(candidate)
            if node is None:
                return None
            if node.kind != "link":
                current = candidate
                continue
            links += 1
            if links > MAX_LINKS:
                raise TandemError(f"{path}: its links form a loop", hint="the image is broken there")
            current = "/" if node.target.startswith("/") else current
            left += [part for part in reversed(node.target.split("/")) if part not in ("", ".")]
        return current

    def real_path(self, path: str) -> str:
        """Returns the same as resolve(), but an empty path if nothing is there, or for a loop of links."""
        try:
            return self.resolve(path) or ""
        except TandemError:
            return ""

    def find(self, path: str) -> Entry | None:
        """Returns what a path leads to; None if nothing is there, or for a loop of links."""
        return self.nodes.get(self.real_path(path))

    def is_dir(self, path: str) -> bool:
        """Returns whether a path leads to a folder."""
        node = self.find(path)
        return path == "/" or (node is not None and node.kind == "dir")

    def is_program(self, path: str) -> bool:
        """Returns whether a path leads to a file that a user may execute."""
        node = self.find(path)
        return node is not None and node.kind == "file" and bool(node.mode & 0o111)

    def content(self, path: str) -> bytes:
        """Returns what was kept of the file that a path leads to; empty if there is none."""
        node = self.find(path)
        return node.content if node else b""

    def text(self, path: str) -> str:
        """Returns the same as text."""
        return self.content(path).decode("utf-8", "replace")

    def names(self, folder: str) -> tuple[str, ...]:
        """Returns the names in a folder, sorted; none if there is no such folder."""
        return tuple(sorted(self._children.get(self.real_path(folder), ())))

    def files(self, name: re.Pattern[str]) -> Iterator[str]:
        """Yields the sorted paths of all files, not links, whose whole name matches."""
        for path in sorted(self.nodes):
            if self.nodes[path].kind == "file" and name.fullmatch(path.rpartition("/")[2]):
                yield path


def read_tar(
    stream: Iterable[bytes], rules: Iterable[KeepRule], on_progress: Callable[[int], None] = lambda _: None
) -> FilesystemView:
    """Returns the filesystem in a tar stream; `on_progress` is told from time to time how many bytes have passed.

    Besides what the rules ask for, the beginning of every executable file is kept: MAX_SCRIPT_BYTES of a script,
    ELF_HEADER_BYTES of any other. Raises TandemError for a stream that is not a tar, breaks off, or leads out of the
    root.
    """
    rules = tuple(rules)
    nodes: dict[str, Entry] = {}
    kept_bytes = 0
    try:
        file = _ChunkReader(stream, on_progress)
        with tarfile.open(
            fileobj=file, mode="r|", bufsize=BLOCK_BYTES, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else it keeps every header until the end
                path = _member_path(member.name)
                if path == "/":
                    continue
                nodes[path] = _member_node(tar, member, path, nodes, rules)
                kept_bytes += len(nodes[path].content)
                if kept_bytes > MAX_KEPT_BYTES or len(nodes) > MAX_PATHS:
                    raise TandemError(f"the image is too large to be read: {len(nodes)} paths at {path!r}")
    except tarfile.TarError as error:
        raise TandemError(f"the export of the image cannot be read: {error}", hint="try again") from error
    for path in list(nodes):
        while (path := posixpath.dirname(path)) not in nodes and path != "/":
            nodes[path] = Entry("dir", 0o755)  # a tar need not name the folders of its files
    return FilesystemView(nodes)


def _member_path(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise TandemError(f"the image has an entry that leads out of its root: {name!r}", hint="do not use this image")
    return "/" + "/".join(parts)


def _member_node(
    tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, nodes: Mapping[str, Entry], rules: Iterable[KeepRule]
) -> Entry:
    mode = stat.S_IMODE(member.mode)
    if member.isdir():
        return Entry("dir", mode)
    if member.issym():
        return Entry("link", mode, target=member.linkname)
    if member.islnk():
        return nodes.get(_member_path(member.linkname)) or Entry("other", mode)
    if not member.isreg():
        return Entry("other", mode)
    return Entry("file", mode, member.size, content=_kept_content(tar, member, path, rules))


def _kept_content(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, rules: Iterable[KeepRule]) -> bytes:
    rule = next((rule for pattern, rule in rules if pattern.search(path)), None)
    if rule is None and not member.mode & 0o111:
        return b""
    file = tar.extractfile(member)
    if file is None or not member.size:
        return b""
    if isinstance(rule, int):
        return file.read(rule)
    if rule is not None:
        return _first_match(iter(lambda: file.read(BLOCK_BYTES), b""), rule)
    start = file.read(ELF_HEADER_BYTES)
    return start + file.read(MAX_SCRIPT_BYTES - ELF_HEADER_BYTES) if start.startswith(b"#!") else start


def _first_match(blocks: Iterator[bytes], rule: re.Pattern[bytes]) -> bytes:
    before = b""
    for block in blocks:
        if match := rule.search(before + block):
            return match[0]
        before = block[-256:]
    return b""


class _ChunkReader(io.RawIOBase):
    """Makes chunks of any size a file that can only be read forward."""

    def __init__(self, chunks: Iterable[bytes], on_progress: Callable[[int], None]) -> None:
        self._chunks = iter(chunks)
        self._on_progress = on_progress
        self._left = b""
        self._total = 0

    def read(self, size: int | None = -1) -> bytes:
        size = BLOCK_BYTES if size is None or size < 0 else size
        parts, have = [self._left], len(self._left)
        while have < size and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            have += len(chunk)
            self._total += len(chunk)
            self._on_progress(self._total)
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]
