"""The files that Debian's maintainer scripts would make and that software needs, made without running the scripts.

They are computed from files that the packages ship, so that they follow the locked versions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

TOP = ("bin", "sbin", "lib", "lib64", "lib32", "libx32", "libo32")
PASSWD = "usr/share/base-passwd/passwd.master"
GROUP = "usr/share/base-passwd/group.master"
CERTIFICATES = "usr/share/ca-certificates/"
ALTERNATIVES = {
    "usr/bin/awk": "/usr/bin/mawk",
    "usr/bin/c++": "/usr/bin/g++",
    "usr/bin/c89": "/usr/bin/c89-gcc",
    "usr/bin/c99": "/usr/bin/c99-gcc",
    "usr/bin/cc": "/usr/bin/gcc",
    "usr/bin/pager": "/usr/bin/more",
    "usr/bin/which": "/usr/bin/which.debianutils",
    "usr/sbin/rmt": "/usr/sbin/rmt-tar",
}
COPIES = {
    "etc/nsswitch.conf": ("usr/share/libc-bin/nsswitch.conf", "usr/share/base-files/nsswitch.conf"),
    "etc/profile": ("usr/share/base-files/profile",),
    "root/.bashrc": ("usr/share/base-files/dot.bashrc",),
    "root/.profile": ("usr/share/base-files/dot.profile",),
}
FOLDERS = {
    "etc/opt": 0o755, "media": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o755, "root": 0o700, "run": 0o755,
    "run/lock": 0o1777, "srv": 0o755, "sys": 0o755, "dev": 0o755, "tmp": 0o1777, "var/log": 0o755, "var/opt": 0o755,
    "var/tmp": 0o1777, "usr/local/bin": 0o755, "usr/local/etc": 0o755, "usr/local/include": 0o755,
    "usr/local/lib": 0o755, "usr/local/sbin": 0o755, "usr/local/share": 0o755, "usr/local/src": 0o755,
}  # fmt: skip
LINKS = {"var/run": "/run", "var/lock": "/run/lock", "etc/dpkg/origins/default": "debian"}
SHELLS = ("bash", "dash", "rbash", "sh")
NEEDED = (PASSWD, GROUP, *(path for paths in COPIES.values() for path in paths))


@dataclass(frozen=True)
class File:
    """A file to make: path below the root, content, mode, group."""

    path: str
    content: bytes
    mode: int = 0o644
    gid: int = 0


@dataclass(frozen=True)
class Link:
    """A symbolic link to make."""

    path: str
    target: str


@dataclass(frozen=True)
class Folder:
    """A folder to make, unless a package brings it."""

    path: str
    mode: int = 0o755


def is_needed(path: str) -> bool:
    """Returns whether plan() needs the content of a package's file."""
    return path in NEEDED or (path.startswith(CERTIFICATES) and path.endswith(".crt"))


def plan(shipped: Callable[[str], bool], content: dict[str, bytes]) -> Iterator[File | Link | Folder]:
    """Yields what to add to a root. `shipped` tells whether a path exists; `content` has the files that are needed."""
    for path, mode in FOLDERS.items():
        yield Folder(path, mode)
    for path, target in LINKS.items():
        if path.startswith("var/") or shipped("etc/dpkg/origins/" + target):
            yield Link(path, target)
    for top in TOP:
        if shipped(f"usr/{top}"):
            yield Link(top, f"usr/{top}")
    for path, sources in COPIES.items():
        for source in sources:
            if source in content:
                yield File(path, content[source])
                break
    yield from _alternatives(shipped)
    yield from _users(content)
    yield from _certificates(content)
    shells = [f"/{folder}/{shell}" for shell in SHELLS for folder in ("bin", "usr/bin") if shipped(f"usr/bin/{shell}")]
    if shells and not shipped("etc/shells"):
        yield File("etc/shells", ("\n".join(shells) + "\n").encode())


def _alternatives(shipped: Callable[[str], bool]) -> Iterator[Link]:
    for path, target in ALTERNATIVES.items():
        if shipped(target.lstrip("/")) and not shipped(path):
            name = path.rsplit("/", 1)[-1]
            yield Link(f"etc/alternatives/{name}", target)
            yield Link(path, f"/etc/alternatives/{name}")
    if shipped("usr/bin/dash") and not shipped("usr/bin/sh"):
        yield Link("usr/bin/sh", "dash")


def _users(content: dict[str, bytes]) -> Iterator[File]:
    """Yield the users and groups of every Debian, without passwords that work and without days of change."""
    if PASSWD not in content or GROUP not in content:
        return
    users = _lines(content[PASSWD])
    groups = _lines(content[GROUP])
    shadow = next((int(line.split(":")[2]) for line in groups if line.startswith("shadow:")), 0)
    yield File("etc/passwd", _text([line.replace(":*:", ":x:", 1) for line in users]))
    yield File("etc/group", _text([line.replace(":*:", ":x:", 1) for line in groups]))
    names = [line.partition(":")[0] for line in users]
    yield File("etc/shadow", _text([f"{name}:*::0:99999:7:::" for name in names]), 0o640, shadow)
    names = [line.partition(":")[0] for line in groups]
    yield File("etc/gshadow", _text([f"{name}:*::" for name in names]), 0o640, shadow)


def _certificates(content: dict[str, bytes]) -> Iterator[File | Link]:
    paths = sorted(path for path in content if path.startswith(CERTIFICATES))
    if not paths:
        return
    bundle = b"".join(content[path].rstrip(b"\n") + b"\n" for path in paths)
    yield File("etc/ssl/certs/ca-certificates.crt", bundle)
    yield File("etc/ca-certificates.conf", _text([path.removeprefix(CERTIFICATES) for path in paths]))
    for path in paths:
        name = path.rsplit("/", 1)[-1].removesuffix(".crt") + ".pem"
        yield Link(f"etc/ssl/certs/{name}", f"/{path}")


def _lines(content: bytes) -> list[str]:
    return [line for line in content.decode().splitlines() if line.strip()]


def _text(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()
