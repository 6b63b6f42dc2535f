"""Small .deb files made in memory, for tests."""

import hashlib
import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path

from pipeline.lock.debs import Deb


def archive(entries: Mapping[str, bytes | str | int | None], mtime: int = 1_600_000_000) -> bytes:
    """A tar: bytes are a file, a string a link and its target, None a folder, a number an empty file with that mode."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, what in entries.items():
            entry = tarfile.TarInfo("./" + path)
            entry.mtime, entry.mode = mtime, 0o644
            match what:
                case bytes():
                    entry.size = len(what)
                    tar.addfile(entry, io.BytesIO(what))
                    continue
                case str():
                    entry.type, entry.linkname = tarfile.SYMTYPE, what
                case int():
                    entry.mode = what
                case None:
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return raw.getvalue()


def make(path: Path, name: str, entries: Mapping[str, bytes | str | int | None], version: str = "1.0") -> Deb:
    """Write a package to `path` and describe it as a lock does."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: arm64\nMaintainer: Nobody <nobody@localhost>\n"
    control += "Description: a test\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": lzma.compress(archive({"control": control.encode(), "md5sums": b""})),
        "data.tar.xz": lzma.compress(archive(entries)),
    }
    raw = b"!<arch>\n"
    for member, content in members.items():
        raw += f"{member:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        raw += b"\n" * (len(content) % 2)
    path.write_bytes(raw)
    pool = f"pool/main/{name[0]}/{name}/{name}_{version}_arm64.deb"
    return Deb(name, version, "arm64", hashlib.sha256(raw).hexdigest(), len(raw), pool)
