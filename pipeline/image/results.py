"""What the stages of an image hand on: values whose fields are the keys of their records."""

from msgspec import Struct


class RootFilesystem(Struct, frozen=True, kw_only=True):
    """The base of an image made from Debian packages: one tar."""

    sha256: str
    """The hash of the tar, as hex."""
    size: int
    """The size of the tar, in bytes."""
    packages: int
    """The number of Debian packages in it."""


class PulledImage(Struct, frozen=True, kw_only=True):
    """The base of an image on top of another image: that image in the engine's store, and the list of its paths."""

    base: str
    """NAME@sha256:…"""
    digest: str
    """sha256:…"""
    paths: int
    """The number of paths in it."""
    sha256: str
    """The hash of the list of paths, as hex."""


Base = RootFilesystem | PulledImage


class Wheels(Struct, frozen=True, kw_only=True):
    """The layers of an image's Python packages."""

    digest: str
    """sha256:… of the list of layers, which has their names, hashes and sizes."""
    layers: dict[str, str]
    """The layers: name → SHA-256 of its tar, as hex."""
    files: int
    """The number of files in all layers."""
    size: int
    """The size of all files in them, in bytes."""


class Built(Struct, frozen=True, kw_only=True):
    """An image in the engine's store."""

    digest: str
    """sha256:… of its manifest, which is its ID in that store."""
    tag: str
    """NAME:TAG in that store."""
    platform: str
    """As in linux/arm64."""
    diff_ids: tuple[str, ...]
    """The hashes of its layers, uncompressed, in order."""
    size: int
    """In bytes, as the engine says it."""

    @property
    def reference(self) -> str:
        """NAME@sha256:… in the engine's store."""
        return f"{self.tag.rpartition(':')[0]}@{self.digest}"
