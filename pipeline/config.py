"""image.yaml, pipeline.yaml and pipeline.local.yaml in; one checked Config out.

A mistake is reported with file, line and key, and with the nearest name that would have been right.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import yaml

from pipeline.errors import ConfigError
from pipeline.models import Cluster, Image, Pipeline
from pipeline.nearest import nearest

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BOOL = "tag:yaml.org,2002:bool"
PIPELINE = "pipeline.yaml"
LOCAL = "pipeline.local.yaml"
IMAGES = "dockerfiles"
Key = tuple[str | int, ...]


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
    images = {folder.name: _image(root, folder) for folder in sorted((root / IMAGES).glob("*/")) if _is_image(folder)}
    sources = [read(root / PIPELINE)]
    if (root / LOCAL).exists():
        sources.insert(0, read(root / LOCAL))
    value: Any = {}
    for source in reversed(sources):
        value = _laid_over(value, source.value)
    pipeline: Pipeline = _convert(value, Pipeline, sources, root)
    _check_names(pipeline, images, sources, root)
    return Config(root, pipeline, images)


def read(file: Path) -> Source:
    """Parse one YAML file; a key that stands twice is an error. Raises ConfigError."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file.name}: cannot be read: {error.strerror}", hint=f"it is expected at {file}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8 at byte {error.start}") from error
    lines: dict[Key, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _index(node, (), lines, file)
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file.name}:{mark.line + 1}" if mark else file.name
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file.name}: not valid YAML: {error}") from error
    return Source(file, {} if value is None else value, lines)


def schemas() -> Mapping[str, str]:
    """The JSON Schemas of image.yaml and pipeline.yaml, as text, by file name below schemas/."""
    shapes = {"image.json": Image, "pipeline.json": Pipeline}
    return {
        name: json.dumps(msgspec.json.schema(shape), indent=2, sort_keys=True) + "\n" for name, shape in shapes.items()
    }


def _is_image(folder: Path) -> bool:
    return folder.is_dir() and (folder / "image.yaml").exists()


def _image(root: Path, folder: Path) -> Image:
    source = read(folder / "image.yaml")
    image: Image = _convert(source.value, Image, [source], root)
    folders: list[tuple[Key, str | None]] = [(("files",), image.files), (("smoke", "config"), image.smoke.config)]
    folders += [(("distributions", i), name) for i, name in enumerate(image.distributions)]
    for key, name in folders:
        if name is not None and not (folder / name).is_dir():
            raise ConfigError(
                f"{_where(key, [source], root)}: no folder {name!r}",
                hint=f"it is looked for in {folder.relative_to(root)}/",
            )
    return image


def _check_names(pipeline: Pipeline, images: Mapping[str, Image], sources: list[Source], root: Path) -> None:
    if pipeline.default not in pipeline.clusters:
        where = _where(("default",), sources, root)
        raise ConfigError(
            f"{where}: no cluster is called {pipeline.default!r}", hint=nearest(pipeline.default, pipeline.clusters)
        )
    host, _, port = pipeline.registry.address.rpartition(":")
    if not host or not port.isdigit():
        where = _where(("registry", "address"), sources, root)
        raise ConfigError(f"{where}: {pipeline.registry.address!r} is not host:port", hint="as in 127.0.0.1:5000")
    for name, cluster in pipeline.clusters.items():
        key: Key = ("clusters", name)
        if cluster.image not in images:
            where = _where((*key, "image"), sources, root)
            raise ConfigError(f"{where}: no image is called {cluster.image!r}", hint=nearest(cluster.image, images))
        names = [node.name for node in cluster.nodes]
        for i, node in enumerate(names):
            if node in names[:i]:
                raise ConfigError(f"{_where((*key, 'nodes', i), sources, root)}: two nodes are called {node!r}")


def _laid_over(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _laid_over(below.get(key), value) for key, value in above.items()}}
    return above


def _index(node: yaml.Node, key: Key, lines: dict[Key, int], file: Path) -> None:
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            inner = (*key, str(name.value))
            lines[inner] = name.start_mark.line + 1
            if name.value in seen:
                raise ConfigError(f"{file.name}:{lines[inner]}: the key {name.value!r} stands twice")
            seen.add(name.value)
            _index(value, inner, lines, file)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _index(value, (*key, i), lines, file)


def _convert(value: Any, shape: type[Any], sources: list[Source], root: Path) -> Any:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        # msgspec's own path leaves out the keys of dictionaries, so the place is found by a second walk.
        from pipeline.faults import faults

        for key, said, hint in faults(value, shape):
            raise ConfigError(f"{_where(key, sources, root)}: {said}", hint=hint) from error
        raise ConfigError(f"{sources[0].file.name}: {error}") from error


def _where(key: Key, sources: list[Source], root: Path) -> str:
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")
    for depth in range(len(key), -1, -1):
        for source in sources:
            if key[:depth] in source.lines:
                return f"{source.file.relative_to(root)}:{source.lines[key[:depth]]}: {dotted}".rstrip(": ")
    return f"{sources[-1].file.relative_to(root)}: {dotted}".rstrip(": ")
