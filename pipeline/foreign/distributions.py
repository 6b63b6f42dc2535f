"""Finds the distributions that a Python of an image sees, and which of them are editable installs."""

import ast
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from urllib.parse import unquote, urlsplit

from pipeline.core.names import normalised_name
from pipeline.foreign.facts import InstalledDistribution
from pipeline.foreign.filesystem import FilesystemView, KeepRule
from pipeline.foreign.python_source import evaluate_literal, parse_module

MAX_TEXT_BYTES = 256 << 10
RULES: tuple[KeepRule, ...] = (
    # The headers come first; a description of any length follows.
    (re.compile(r"\.dist-info/METADATA$|\.egg-info/PKG-INFO$|\.egg-info$|/EGG-INFO/PKG-INFO$"), MAX_TEXT_BYTES),
    (re.compile(r"\.dist-info/direct_url\.json$|(\.egg-info|/EGG-INFO)/requires\.txt$|\.egg-link$"), MAX_TEXT_BYTES),
    (re.compile(r"/__editable___[^/]*_finder\.py$"), MAX_TEXT_BYTES),
)


MAX_NAME_CHARS = 255
"""The length of a name or version; no longer one fits into the name of a file, as .dist-info has it."""


@dataclass(frozen=True)
class DistributionScan:
    """The distributions of an image."""

    distributions: tuple[InstalledDistribution, ...]
    """The first distribution of each name on the path, sorted by name."""
    oddities: tuple[str, ...]
    """What is wrong with the others, one sentence each."""


@dataclass(frozen=True)
class _Editables:
    """The editable installs that the site folders name."""

    sources: dict[str, str] = field(default_factory=dict)
    """The folder with the source, by the distribution's normalised name."""
    modules: dict[str, str] = field(default_factory=dict)
    """The folder of each top-level module."""


def find_distributions(view: FilesystemView, paths: Sequence[str]) -> DistributionScan:
    """Finds all distributions in the folders of a Python's path."""
    editables = _find_editables(view, paths)
    first_by_name: dict[str, InstalledDistribution] = {}
    oddities: list[str] = []
    for folder in paths:
        for name in view.names(folder):
            if name.startswith("~") or not (name.endswith((".dist-info", ".egg-info")) or name == "EGG-INFO"):
                continue
            distribution = _read_distribution(view, folder, name, editables)
            if distribution is None:
                oddities.append(f"{posixpath.join(folder, name)} has no metadata that says name and version")
                continue
            earlier = first_by_name.setdefault(distribution.name, distribution)
            # The source of an editable install has metadata of its own.
            if earlier is not distribution and (earlier.editable != folder or earlier.version != distribution.version):
                oddities.append(
                    f"{distribution.name} is there twice: {earlier.version} in {earlier.place}, which Python imports, "
                    f"and {distribution.version} in {distribution.place}"
                )
    return DistributionScan(tuple(first_by_name[name] for name in sorted(first_by_name)), tuple(oddities))


def package_folder(view: FilesystemView, paths: Sequence[str], name: str) -> str:
    """Returns the folder that Python imports a top-level package from; empty if there is none.

    The path comes before finders: setuptools adds its finders at the end of sys.meta_path.
    """
    for folder in paths:
        if view.find(f"{folder}/{name}/__init__.py"):
            return posixpath.join(folder, name)
    mapped = _find_editables(view, paths).modules.get(name, "")
    return mapped if view.is_dir(mapped) and mapped else ""


def _find_editables(view: FilesystemView, paths: Sequence[str]) -> _Editables:
    editables = _Editables()
    for folder in paths:
        for name in view.names(folder):
            path = posixpath.join(folder, name)
            if match := re.fullmatch(r"__editable__\.(.+)-([^-]+)\.pth", name):
                lines = [line for line in view.text(path).splitlines() if line.startswith("/")]
                editables.sources.update({normalised_name(match[1]): posixpath.normpath(line) for line in lines[:1]})
            elif match := re.fullmatch(r"__editable___(.+)_finder\.py", name):
                modules = _parse_mapping(view.text(path))
                editables.modules.update(modules)
                # The file's name has the distribution's name and version, with _ for every other character.
                label = re.sub(r"_\d.*", "", match[1])
                editables.sources.update(
                    {normalised_name(label): _project_root(view, location) for location in list(modules.values())[:1]}
                )
            elif name.endswith(".egg-link"):
                lines = view.text(path).split()
                editables.sources.update({normalised_name(name.removesuffix(".egg-link")): line for line in lines[:1]})
    return editables


def _parse_mapping(source: str) -> dict[str, str]:
    """Returns the MAPPING, module to folder, of a finder that setuptools writes (its command/editable_wheel.py)."""
    try:
        tree = parse_module(source)
    except ValueError:
        return {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="MAPPING")], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id="MAPPING"), value=ast.expr() as value):
                pass
            case _:
                continue
        mapping = evaluate_literal(value)
        return {str(key): str(path) for key, path in mapping.items()} if isinstance(mapping, dict) else {}
    return {}


def _project_root(view: FilesystemView, module: str) -> str:
    """Returns the project of a module's folder: the nearest folder above it with a build file, else its parent."""
    folder = posixpath.dirname(posixpath.normpath(module))
    nearest = folder
    while folder not in ("/", ""):
        if any(view.find(f"{folder}/{name}") for name in ("pyproject.toml", "setup.py")):
            return folder
        folder = posixpath.dirname(folder)
    return nearest


def _read_distribution(
    view: FilesystemView, folder: str, name: str, editables: _Editables
) -> InstalledDistribution | None:
    metadata = posixpath.join(folder, name)
    file = "METADATA" if name.endswith(".dist-info") else "PKG-INFO"
    text = view.text(f"{metadata}/{file}") if view.is_dir(metadata) else view.text(metadata)
    headers = HeaderParser().parsestr(text)
    own_name, version = (headers.get("Name") or "").strip(), (headers.get("Version") or "").strip()
    if not own_name or not version or max(len(own_name), len(version)) > MAX_NAME_CHARS:
        return None
    requires = [" ".join(str(item).split()) for item in headers.get_all("Requires-Dist", [])]
    if not requires:
        requires = list(_parse_requires_txt(view.text(f"{metadata}/requires.txt")))
    return InstalledDistribution(
        name=normalised_name(own_name),
        version=version,
        place=folder,
        editable=_editable_source(view, metadata) or editables.sources.get(normalised_name(own_name), ""),
        requires=tuple(requires),
        extras=tuple(str(item).strip() for item in headers.get_all("Provides-Extra", [])),
    )


def _editable_source(view: FilesystemView, metadata: str) -> str:
    """Returns the source of an editable install, by its direct_url.json (PEP 610); empty if it is not one."""
    try:
        direct_url = json.loads(view.text(f"{metadata}/direct_url.json") or "{}")
        editable, url = direct_url.get("dir_info", {}).get("editable"), urlsplit(direct_url.get("url", ""))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
    return posixpath.normpath(unquote(url.path)) if editable is True and url.scheme == "file" else ""


def _parse_requires_txt(text: str) -> Iterator[str]:
    """Yields the requirements in an egg's requires.txt, whose sections are [extra], [:marker] and [extra:marker]."""
    conditions: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            extra, _, marker = line.strip("[]").partition(":")
            conditions = [f"({marker})"] if marker else []
            conditions += [f'extra == "{extra}"'] if extra else []
        elif not line.startswith("#"):
            yield f"{line} ; {' and '.join(conditions)}" if conditions else line
