"""image.yaml, pipeline.yaml and pipeline.local.yaml in; one checked Config out.

A mistake is reported with file, line and key, and with the nearest name that would have been right.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from pipeline.core.errors import ConfigError
from pipeline.core.suggest import likely, nearest

if TYPE_CHECKING:
    from pipeline.graph.stat_cache import StatCache

_CACHE_KIND = "yaml 1"
"""What the cache calls a file's value; to be counted up when the same text comes to mean something else."""
PIPELINE_FILE = "pipeline.yaml"
LOCAL_FILE = "pipeline.local.yaml"
IMAGES_FOLDER = "dockerfiles"
RESERVED_NAMES = ("registry", "lab")  # lock:registry and lock:lab are Tandem's own


class Config(Struct, frozen=True):
    """Everything that people decided: `images` by folder name, clusters and registry in `pipeline`."""

    root: Path
    pipeline: Pipeline
    images: Mapping[str, Image]

    def cluster(self, name: str) -> Cluster:
        """The cluster of that name; raises ConfigError with the nearest name if there is none."""
        if name in self.pipeline.clusters:
            return self.pipeline.clusters[name]
        raise ConfigError(f"{PIPELINE_FILE}: no cluster is called {name!r}", hint=nearest(name, self.pipeline.clusters))


class YamlFile(Struct, frozen=True):
    """One YAML file below the root, and its value."""

    file: Path
    name: str
    value: Any

    def lines(self) -> Mapping[Key, int]:
        """On which line each key stands. Only messages ask for it, and YAML takes long to import."""
        from pipeline.config import yaml_source

        return yaml_source.parse(self.file, self.name)[1]


def load_config(root: Path, cache: "StatCache | None" = None) -> Config:
    """Read and check the whole configuration below `root`; the cache knows files already. Raises ConfigError."""
    images = dict(_load_images(root, cache))
    sources = [read_yaml(root / PIPELINE_FILE, root, cache)]
    if os.path.lexists(root / LOCAL_FILE):
        sources.insert(0, read_yaml(root / LOCAL_FILE, root, cache))
    value: Any = {}
    for source in reversed(sources):
        value = _merge(value, source.value)
    pipeline: Pipeline = _convert(value, Pipeline, sources)
    _raise_first(pipeline_violations(pipeline, images), sources)
    return Config(root, pipeline, images)


def read_yaml(file: Path, root: Path, cache: "StatCache | None" = None) -> YamlFile:
    """One YAML file below `root`, parsed only if the cache does not know it; a key that stands twice is an error.

    Raises ConfigError.
    """
    name = file.relative_to(root).as_posix()
    try:
        known = cache.fact(_CACHE_KIND, file, lambda _: _as_json(file, name)) if cache else ""
        value = json.loads(known) if known else _parse(file, name)
    except OSError as error:
        raise _unreadable_error(name, file, error) from error
    return YamlFile(file, name, value)


def _parse(file: Path, name: str) -> Any:
    from pipeline.config import yaml_source

    return yaml_source.parse(file, name)[0]


def _as_json(file: Path, name: str) -> str:
    """A file's value as JSON, or nothing if it has values that JSON has not."""
    value = _parse(file, name)
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return ""
    return text if json.loads(text) == value else ""


def _unreadable_error(name: str, file: Path, error: OSError) -> ConfigError:
    hint = "./doitw must be able to read it"
    if isinstance(error, FileNotFoundError):
        hint = f"it is a link to {file.readlink()}" if file.is_symlink() else f"it is expected at {file}"
    return ConfigError(f"{name}: cannot be read: {error.strerror}", hint=hint)


def json_schemas() -> Mapping[str, str]:
    """The JSON Schemas of image.yaml and pipeline.yaml, as text, by file name below schemas/."""
    made = {"image.json": _any_of(DebianImage, CombinedImage), "pipeline.json": msgspec.json.schema(Pipeline)}
    return {name: json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in made.items()}


def _any_of(*shapes: type[Common]) -> Any:
    """One JSON Schema for several models; a file must fit one of them."""
    references, definitions = msgspec.json.schema_components(shapes, ref_template="#/$defs/{name}")
    return {"anyOf": list(references), "$defs": definitions}


def _load_images(root: Path, cache: "StatCache | None") -> Iterator[tuple[str, Image]]:
    """Every folder below dockerfiles/ but hidden ones: each is an image, and is named as it."""
    for folder in _image_folders(root):
        where = f"{IMAGES_FOLDER}/{folder.name}"
        if not re.fullmatch(NAME, folder.name):
            raise ConfigError(f"{where}: {folder.name!r} is not {NAME_WORDS}", hint="rename the folder")
        if folder.name in RESERVED_NAMES:
            raise ConfigError(f"{where}: {folder.name!r} is a word of Tandem's own", hint="rename the folder")
        for wanted in ("image.yaml", "Dockerfile"):
            try:
                there = (folder / wanted).is_file()
            except OSError as error:
                raise _unreadable_error(f"{where}/{wanted}", folder / wanted, error) from error
            if not there:
                said = "it is no plain file" if os.path.lexists(folder / wanted) else "there is no such file"
                hint = f"every folder below {IMAGES_FOLDER}/ is an image: write the file, or move the folder elsewhere"
                raise ConfigError(f"{where}/{wanted}: {said}", hint=hint)
        yield folder.name, _load_image(root, folder, cache)


def _image_folders(root: Path) -> list[Path]:
    """The folders below dockerfiles/, links to folders too; none if there is no such folder."""
    try:
        found = sorted(
            path for path in (root / IMAGES_FOLDER).iterdir() if not path.name.startswith(".") and path.is_dir()
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable_error(IMAGES_FOLDER, root / IMAGES_FOLDER, error) from error
    return found


def _load_image(root: Path, folder: Path, cache: "StatCache | None") -> Image:
    source = read_yaml(folder / "image.yaml", root, cache)
    shape = _image_model(source.value)
    if shape is CombinedImage:
        _raise_first(mixed_base_violations(source.value), [source])
    image: Image = _convert(source.value, shape, [source])
    try:
        _raise_first(image_violations(image, folder), [source])
    except OSError as error:
        # Of a folder that image.yaml names.
        raise _unreadable_error(
            Path(error.filename).relative_to(root).as_posix(), Path(error.filename), error
        ) from error
    return image


def _image_model(value: Any) -> type[DebianImage] | type[CombinedImage]:
    """Which of the two ways to make an image a file means."""
    base = value.get("base") if isinstance(value, dict) else None
    keys = [str(key) for key in base] if isinstance(base, dict) else []
    on_image = any(likely(key, ("image", *DEBIAN_KEYS)) == "image" for key in keys)
    return CombinedImage if on_image or (isinstance(value, dict) and "combine" in value) else DebianImage


def _raise_first(found: Iterable[Violation], sources: list[YamlFile]) -> None:
    for key, said, hint in found:
        raise ConfigError(f"{_location(key, sources)}: {said}", hint=hint)


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _merge(below.get(key), value) for key, value in above.items()}}
    return above


def _convert(value: Any, shape: type[Any], sources: list[YamlFile]) -> Any:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        # msgspec's own path leaves out the keys of dictionaries, so the place is found by a second walk.
        from pipeline.config.explain import explain_violations

        for key, said, hint in explain_violations(value, shape):
            raise ConfigError(f"{_location(key, sources)}: {said}", hint=hint) from error
        raise ConfigError(f"{sources[0].name}: {error}") from error


def _location(key: Key, sources: list[YamlFile]) -> str:
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")
    lines = [(source.name, source.lines()) for source in sources]
    for depth in range(len(key), -1, -1):
        for name, known in lines:
            if key[:depth] in known:
                return f"{name}:{known[key[:depth]]}: {dotted}".rstrip(": ")
    return f"{sources[-1].name}: {dotted}".rstrip(": ")
