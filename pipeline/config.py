"""image.yaml, pipeline.yaml and pipeline.local.yaml in; one checked Config out.

A mistake is reported with file, line and key, and with the nearest name that would have been right.
"""

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import yaml

from pipeline.errors import ConfigError
from pipeline.models import NAME, NAME_WORDS, Cluster, CombinedImage, Common, DebianImage, Image, Pipeline
from pipeline.nearest import likely, nearest
from pipeline.sensible import OF_DEBIAN, Fault, Key, image_faults, mixed_faults, pipeline_faults

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BOOL = "tag:yaml.org,2002:bool"
_SPELLED_ANEW = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
PIPELINE = "pipeline.yaml"
LOCAL = "pipeline.local.yaml"
IMAGES = "dockerfiles"
RESERVED = ("registry", "lab")  # lock:registry and lock:lab are Tandem's own


class _Loader(_SAFE):  # type: ignore[misc]  # chosen at run time
    """Takes only true and false for booleans, as YAML 1.2 and editors do: `records: off` is a word."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [(tag, pattern) for tag, pattern in known if tag != _BOOL]
        for first, known in _SAFE.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


@dataclass(frozen=True)
class Config:
    """Everything that people decided: `images` by folder name, clusters and registry in `pipeline`."""

    root: Path
    pipeline: Pipeline
    images: Mapping[str, Image]

    def cluster(self, name: str) -> Cluster:
        """The cluster of that name; raises ConfigError with the nearest name if there is none."""
        if name in self.pipeline.clusters:
            return self.pipeline.clusters[name]
        raise ConfigError(f"{PIPELINE}: no cluster is called {name!r}", hint=nearest(name, self.pipeline.clusters))


@dataclass(frozen=True)
class Source:
    """One YAML file: its value, and on which line each key stands."""

    file: Path
    value: Any
    lines: Mapping[Key, int]


def load(root: Path) -> Config:
    """Read and check the whole configuration below `root`. Raises ConfigError."""
    images = dict(_images(root))
    sources = [read(root / PIPELINE, root)]
    if os.path.lexists(root / LOCAL):
        sources.insert(0, read(root / LOCAL, root))
    value: Any = {}
    for source in reversed(sources):
        value = _laid_over(value, source.value)
    pipeline: Pipeline = _convert(value, Pipeline, sources, root)
    _refuse(pipeline_faults(pipeline, images), sources, root)
    return Config(root, pipeline, images)


def read(file: Path, root: Path) -> Source:
    """Parse one YAML file below `root`; a key that stands twice is an error. Raises ConfigError."""
    name = file.relative_to(root).as_posix()
    lines: dict[Key, int] = {}
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"{name}: it is no plain file", hint="put one there, or a link to one")
        data = file.read_bytes()
        text = data.decode()
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _index(node, (), lines, name)
        value = yaml.load(text, Loader=_Loader)
    except OSError as error:
        raise _unreadable(name, file, error) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 at byte {error.start}", hint="save the file as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        hint = "look at brackets, quotes and indentation there and in the line above"
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}", hint=hint) from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply", hint="an alias (*name) inside its own anchor?") from error
    except (yaml.YAMLError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{name}: not valid YAML: {said}", hint="put dates and odd text in quotes") from error
    return Source(file, {} if value is None else value, lines)


def _unreadable(name: str, file: Path, error: OSError) -> ConfigError:
    hint = "./doitw must be able to read it"
    if isinstance(error, FileNotFoundError):
        hint = f"it is a link to {file.readlink()}" if file.is_symlink() else f"it is expected at {file}"
    return ConfigError(f"{name}: cannot be read: {error.strerror}", hint=hint)


def schemas() -> Mapping[str, str]:
    """The JSON Schemas of image.yaml and pipeline.yaml, as text, by file name below schemas/."""
    made = {"image.json": _either(DebianImage, CombinedImage), "pipeline.json": msgspec.json.schema(Pipeline)}
    return {name: json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in made.items()}


def _either(*shapes: type[Common]) -> Any:
    """One JSON Schema for several models; a file must fit one of them."""
    references, definitions = msgspec.json.schema_components(shapes, ref_template="#/$defs/{name}")
    return {"anyOf": list(references), "$defs": definitions}


def _images(root: Path) -> Iterator[tuple[str, Image]]:
    """Every folder below dockerfiles/ but hidden ones: each is an image, and is named as it."""
    for folder in _folders(root):
        where = f"{IMAGES}/{folder.name}"
        if not re.fullmatch(NAME, folder.name):
            raise ConfigError(f"{where}: {folder.name!r} is not {NAME_WORDS}", hint="rename the folder")
        if folder.name in RESERVED:
            raise ConfigError(f"{where}: {folder.name!r} is a word of Tandem's own", hint="rename the folder")
        for wanted in ("image.yaml", "Dockerfile"):
            try:
                there = (folder / wanted).is_file()
            except OSError as error:
                raise _unreadable(f"{where}/{wanted}", folder / wanted, error) from error
            if not there:
                said = "it is no plain file" if os.path.lexists(folder / wanted) else "there is no such file"
                hint = f"every folder below {IMAGES}/ is an image: write the file, or move the folder elsewhere"
                raise ConfigError(f"{where}/{wanted}: {said}", hint=hint)
        yield folder.name, _image(root, folder)


def _folders(root: Path) -> list[Path]:
    """The folders below dockerfiles/, links to folders too; none if there is no such folder."""
    try:
        found = sorted(path for path in (root / IMAGES).iterdir() if not path.name.startswith(".") and path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(IMAGES, root / IMAGES, error) from error
    return found


def _image(root: Path, folder: Path) -> Image:
    source = read(folder / "image.yaml", root)
    shape = _shape(source.value)
    if shape is CombinedImage:
        _refuse(mixed_faults(source.value), [source], root)
    image: Image = _convert(source.value, shape, [source], root)
    try:
        _refuse(image_faults(image, folder), [source], root)
    except OSError as error:
        # Of a folder that image.yaml names.
        raise _unreadable(Path(error.filename).relative_to(root).as_posix(), Path(error.filename), error) from error
    return image


def _shape(value: Any) -> type[DebianImage] | type[CombinedImage]:
    """Which of the two ways to make an image a file means."""
    base = value.get("base") if isinstance(value, dict) else None
    keys = [str(key) for key in base] if isinstance(base, dict) else []
    on_image = any(likely(key, ("image", *OF_DEBIAN)) == "image" for key in keys)
    return CombinedImage if on_image or (isinstance(value, dict) and "combine" in value) else DebianImage


def _refuse(found: Iterable[Fault], sources: list[Source], root: Path) -> None:
    for key, said, hint in found:
        raise ConfigError(f"{_where(key, sources, root)}: {said}", hint=hint)


def _laid_over(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _laid_over(below.get(key), value) for key, value in above.items()}}
    return above


def _index(node: yaml.Node, key: Key, lines: dict[Key, int], file: str) -> None:
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str | int] = set()
        for name, value in node.value:
            inner = (*key, _spelled(name))
            lines[inner] = name.start_mark.line + 1
            if inner[-1] in seen:
                hint = "keep one of both: YAML would pass over the first"
                raise ConfigError(f"{file}:{lines[inner]}: the key {inner[-1]!r} stands twice", hint=hint)
            seen.add(inner[-1])
            _index(value, inner, lines, file)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _index(value, (*key, i), lines, file)


def _spelled(name: yaml.Node) -> str:
    """A key as its value is spelled: 0x1 is 1, and ~ is None, like any other null."""
    anew = isinstance(name, yaml.ScalarNode) and name.tag in _SPELLED_ANEW
    return str(yaml.load(name.value, Loader=_Loader) if anew else name.value)


def _convert(value: Any, shape: type[Any], sources: list[Source], root: Path) -> Any:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        # msgspec's own path leaves out the keys of dictionaries, so the place is found by a second walk.
        from pipeline.faults import faults

        for key, said, hint in faults(value, shape):
            raise ConfigError(f"{_where(key, sources, root)}: {said}", hint=hint) from error
        raise ConfigError(f"{sources[0].file.relative_to(root)}: {error}") from error


def _where(key: Key, sources: list[Source], root: Path) -> str:
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")
    for depth in range(len(key), -1, -1):
        for source in sources:
            if key[:depth] in source.lines:
                return f"{source.file.relative_to(root)}:{source.lines[key[:depth]]}: {dotted}".rstrip(": ")
    return f"{sources[-1].file.relative_to(root)}: {dotted}".rstrip(": ")
