"""Reads image.yaml, pipeline.yaml and pipeline.local.yaml into one checked Config.

A mistake is reported with its file, line and key, and with the nearest name that would have been right.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from pipeline.config.models import NAME, NAME_WORDS, Cluster, CombinedImage, Common, DebianImage, Image, Pipeline
from pipeline.config.rules import (
    DEBIAN_KEYS,
    Key,
    Violation,
    image_violations,
    mixed_base_violations,
    pipeline_violations,
)
from pipeline.core import redact, sensitive
from pipeline.core.errors import ConfigError
from pipeline.core.suggest import closest_name, suggestion

_CACHE_KIND = "yaml 1"
"""The cache's name for a file's value. Raise the number when the same text comes to mean another value."""
PIPELINE_FILE = "pipeline.yaml"
LOCAL_FILE = "pipeline.local.yaml"
IMAGES_FOLDER = "dockerfiles"
RESERVED_NAMES = ("registry", "lab")  # lock:registry and lock:lab are Tandem's own


class FileCache(Protocol):
    """Remembers a text that follows from a file's content, as graph.stat_cache.StatCache does."""

    def fact(self, kind: str, path: Path | str, find: Callable[[str], str]) -> str:
        """Returns the text of that kind for a file; `find` makes it if it is not known."""
        ...

    def forget(self, kind: str, path: Path | str) -> None:
        """Drops the text of that kind for a file."""
        ...


class Config(Struct, frozen=True):
    """Everything that people decide."""

    root: Path
    pipeline: Pipeline
    """The clusters and the registry."""
    images: Mapping[str, Image]
    """The images, by the name of their folder."""

    def cluster(self, name: str) -> Cluster:
        """Returns the cluster of that name. Raises ConfigError, with the nearest name, if there is none."""
        if name in self.pipeline.clusters:
            return self.pipeline.clusters[name]
        raise ConfigError(
            f"{PIPELINE_FILE}: no cluster is called {name!r}", hint=suggestion(name, self.pipeline.clusters)
        )


class YamlFile(Struct, frozen=True):
    """A YAML file and its value."""

    file: Path
    name: str
    """The path below the root, for messages."""
    value: Any

    def lines(self) -> Mapping[Key, int]:
        """Returns the line of each key. Only messages need it, since PyYAML takes long to import."""
        from pipeline.config import yaml_source

        return yaml_source.parse(self.file, self.name)[1]


def load_config(root: Path, cache: FileCache | None = None) -> Config:
    """Reads and checks the whole configuration below `root`. Raises ConfigError.

    A file that the cache knows is not parsed again.
    """
    images = dict(_load_images(root, cache))
    sources = [read_yaml(root / PIPELINE_FILE, root, cache)]
    if os.path.lexists(root / LOCAL_FILE):
        sources.insert(0, read_yaml(root / LOCAL_FILE, root, cache))
    for source in sources:
        redact.register_in(source.value)
    value: Any = {}
    for source in reversed(sources):
        value = _merge(value, source.value)
    pipeline: Pipeline = _convert(value, Pipeline, sources)
    _raise_first(pipeline_violations(pipeline, images), sources)
    return Config(root, pipeline, images)


def read_yaml(file: Path, root: Path, cache: FileCache | None = None) -> YamlFile:
    """Reads one YAML file below `root`; it is parsed only if the cache does not know it.

    Raises ConfigError, also for a key that appears twice.
    """
    name = file.relative_to(root).as_posix()
    try:
        text = cache.fact(_CACHE_KIND, file, lambda _: _as_json(file, name)) if cache else ""
        value = json.loads(text) if text else _parse(file, name)
        if cache and text and _is_private(name, value):
            cache.forget(_CACHE_KIND, file)  # an earlier version kept it
    except OSError as error:
        raise _unreadable_error(name, file, error) from error
    return YamlFile(file, name, value)


def _parse(file: Path, name: str) -> Any:
    from pipeline.config import yaml_source

    return yaml_source.parse(file, name)[0]


def _as_json(file: Path, name: str) -> str:
    """Returns a file's value as JSON; empty if it is private, or if JSON cannot hold it, as with dates."""
    value = _parse(file, name)
    if _is_private(name, value):
        return ""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return ""
    return text if json.loads(text) == value else ""


def _is_private(name: str, value: Any) -> bool:
    """Returns whether a file's value must not be copied into the cache, which everybody may read."""
    return name == LOCAL_FILE or any(True for _ in sensitive.value_secrets(value, plain=True))


def _unreadable_error(name: str, file: Path, error: OSError) -> ConfigError:
    hint = "./doitw must be able to read it"
    if isinstance(error, FileNotFoundError):
        hint = f"it is a link to {file.readlink()}" if file.is_symlink() else f"it is expected at {file}"
    return ConfigError(f"{name}: cannot be read: {error.strerror}", hint=hint)


def json_schemas() -> Mapping[str, str]:
    """Returns the JSON Schemas of image.yaml and pipeline.yaml, as text, by file name below schemas/."""
    schemas = {"image.json": _any_of(DebianImage, CombinedImage), "pipeline.json": msgspec.json.schema(Pipeline)}
    return {name: json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in schemas.items()}


def _any_of(*shapes: type[Common]) -> Any:
    """Returns one JSON Schema for several models; a file must fit one of them."""
    references, definitions = msgspec.json.schema_components(shapes, ref_template="#/$defs/{name}")
    return {"anyOf": list(references), "$defs": definitions}


def _load_images(root: Path, cache: FileCache | None) -> Iterator[tuple[str, Image]]:
    """Reads the image of every folder below dockerfiles/ that is not hidden; the image has the folder's name."""
    for folder in _image_folders(root):
        path = f"{IMAGES_FOLDER}/{folder.name}"
        if not re.fullmatch(NAME, folder.name):
            raise ConfigError(f"{path}: {folder.name!r} is not {NAME_WORDS}", hint="rename the folder")
        if folder.name in RESERVED_NAMES:
            raise ConfigError(f"{path}: {folder.name!r} is a name that Tandem reserves", hint="rename the folder")
        for name in ("image.yaml", "Dockerfile"):
            try:
                is_file = (folder / name).is_file()
            except OSError as error:
                raise _unreadable_error(f"{path}/{name}", folder / name, error) from error
            if not is_file:
                reason = "it is not a regular file" if os.path.lexists(folder / name) else "there is no such file"
                hint = f"every folder below {IMAGES_FOLDER}/ is an image: write the file, or move the folder elsewhere"
                raise ConfigError(f"{path}/{name}: {reason}", hint=hint)
        yield folder.name, _load_image(root, folder, cache)


def _image_folders(root: Path) -> list[Path]:
    """Returns the folders below dockerfiles/, sorted, links to folders included; none if it does not exist."""
    try:
        return sorted(
            path for path in (root / IMAGES_FOLDER).iterdir() if not path.name.startswith(".") and path.is_dir()
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable_error(IMAGES_FOLDER, root / IMAGES_FOLDER, error) from error


def _load_image(root: Path, folder: Path, cache: FileCache | None) -> Image:
    source = read_yaml(folder / "image.yaml", root, cache)
    model = _image_model(source.value)
    if model is CombinedImage:
        _raise_first(mixed_base_violations(source.value), [source])
    image: Image = _convert(source.value, model, [source])
    try:
        _raise_first(image_violations(image, folder), [source])
    except OSError as error:
        # The error is about a folder that image.yaml names.
        raise _unreadable_error(
            Path(error.filename).relative_to(root).as_posix(), Path(error.filename), error
        ) from error
    return image


def _image_model(value: Any) -> type[DebianImage] | type[CombinedImage]:
    """Returns the model that fits the kind of image which a file describes."""
    base = value.get("base") if isinstance(value, dict) else None
    keys = [str(key) for key in base] if isinstance(base, dict) else []
    on_image = any(closest_name(key, ("image", *DEBIAN_KEYS)) == "image" for key in keys)
    return CombinedImage if on_image or (isinstance(value, dict) and "combine" in value) else DebianImage


def _raise_first(violations: Iterable[Violation], sources: list[YamlFile]) -> None:
    for key, reason, hint in violations:
        raise ConfigError(f"{_location(key, sources)}: {reason}", hint=hint)


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _merge(below.get(key), value) for key, value in above.items()}}
    return above


def _convert(value: Any, model: type[Any], sources: list[YamlFile]) -> Any:
    try:
        return msgspec.convert(value, model)
    except msgspec.ValidationError as error:
        # msgspec's own path leaves out the keys of dictionaries, so a second walk finds the place.
        from pipeline.config.explain import explain_violations

        for key, reason, hint in explain_violations(value, model):
            raise ConfigError(f"{_location(key, sources)}: {reason}", hint=hint) from error
        raise ConfigError(f"{sources[0].name}: {error}") from error


def _location(key: Key, sources: list[YamlFile]) -> str:
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")
    files = [(source.name, source.lines()) for source in sources]
    for depth in range(len(key), -1, -1):
        for name, lines in files:
            if key[:depth] in lines:
                return f"{name}:{lines[key[:depth]]}: {dotted}".rstrip(": ")
    return f"{sources[-1].name}: {dotted}".rstrip(": ")
