"""The distributions that a Python of an image sees, from their metadata, and which of them are editable installs."""

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
    # The headers, which come first; what follows is a description of any length.
    (re.compile(r"\.dist-info/METADATA$|\.egg-info/PKG-INFO$|\.egg-info$|/EGG-INFO/PKG-INFO$"), MAX_TEXT_BYTES),
    (re.compile(r"\.dist-info/direct_url\.json$|(\.egg-info|/EGG-INFO)/requires\.txt$|\.egg-link$"), MAX_TEXT_BYTES),
    (re.compile(r"/__editable___[^/]*_finder\.py$"), MAX_TEXT_BYTES),
)


MAX_NAME_CHARS = 255
"""The length of a name or version; no longer one fits into the name of a file, as .dist-info has it."""


@dataclass(frozen=True)
class DistributionScan:
    """The distributions that count, the first of each name on the path; and in words what is wrong with the rest."""

    distributions: tuple[InstalledDistribution, ...]
    oddities: tuple[str, ...]


@dataclass(frozen=True)
class _Editables:
    """What the site folders say of editable installs: name (normalised) → folder with the source."""

    sources: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)  # top-level module → its folder


def find_distributions(view: FilesystemView, paths: Sequence[str]) -> DistributionScan:
    """All distributions in folders of a Python's path, sorted by name."""
    editables = _find_editables(view, paths)
    first: dict[str, InstalledDistribution] = {}
    oddities: list[str] = []
    for folder in paths:
        for name in view.names(folder):
            if name.startswith("~") or not (name.endswith((".dist-info", ".egg-info")) or name == "EGG-INFO"):
                continue
            inside = _read_distribution(view, folder, name, editables)
            if inside is None:
                oddities.append(f"{posixpath.join(folder, name)} has no metadata that says name and version")
                continue
            known = first.setdefault(inside.name, inside)
            # The source of an editable install has metadata of its own.
            if known is not inside and (known.editable != folder or known.version != inside.version):
                oddities.append(
                    f"{inside.name} is there twice: {known.version} in {known.place}, which Python imports, "
                    f"and {inside.version} in {inside.place}"
                )
    return DistributionScan(tuple(first[name] for name in sorted(first)), tuple(oddities))


def package_folder(view: FilesystemView, paths: Sequence[str], name: str) -> str:
    """The folder of a top-level package, where Python imports it from; empty if it is not there.

    Path before finders: setuptools adds its finders at the end of sys.meta_path.
    """
    for folder in paths:
        if view.find(f"{folder}/{name}/__init__.py"):
            return posixpath.join(folder, name)
    mapped = _find_editables(view, paths).modules.get(name, "")
    return mapped if view.is_dir(mapped) and mapped else ""


def _find_editables(view: FilesystemView, paths: Sequence[str]) -> _Editables:
    known = _Editables()
    for folder in paths:
        for name in view.names(folder):
            path = posixpath.join(folder, name)
            if match := re.fullmatch(r"__editable__\.(.+)-([^-]+)\.pth", name):
                lines = [line for line in view.text(path).splitlines() if line.startswith("/")]
                known.sources.update({normalised_name(match[1]): posixpath.normpath(line) for line in lines[:1]})
            elif match := re.fullmatch(r"__editable___(.+)_finder\.py", name):
                modules = _parse_mapping(view.text(path))
                known.modules.update(modules)
                # The module's name has the version behind the distribution's, both with _ for all else.
                label = re.sub(r"_\d.*", "", match[1])
                known.sources.update(
                    {normalised_name(label): _project_root(view, at) for at in list(modules.values())[:1]}
                )
            elif name.endswith(".egg-link"):
                lines = view.text(path).split()
                known.sources.update({normalised_name(name.removesuffix(".egg-link")): line for line in lines[:1]})
    return known


def _parse_mapping(source: str) -> dict[str, str]:
    """MAPPING of a finder module that setuptools writes (setuptools/command/editable_wheel.py): module → folder."""
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
    """The project that a module's folder belongs to: the nearest above it with a build file, else its parent."""
    at = posixpath.dirname(posixpath.normpath(module))
    nearest = at
    while at not in ("/", ""):
        if any(view.find(f"{at}/{name}") for name in ("pyproject.toml", "setup.py")):
            return at
        at = posixpath.dirname(at)
    return nearest


def _read_distribution(
    view: FilesystemView, folder: str, name: str, editables: _Editables
) -> InstalledDistribution | None:
    where = posixpath.join(folder, name)
    file = "METADATA" if name.endswith(".dist-info") else "PKG-INFO"
    text = view.text(f"{where}/{file}") if view.is_dir(where) else view.text(where)
    headers = HeaderParser().parsestr(text)
    called, version = (headers.get("Name") or "").strip(), (headers.get("Version") or "").strip()
    if not called or not version or max(len(called), len(version)) > MAX_NAME_CHARS:
        return None
    requires = [" ".join(str(item).split()) for item in headers.get_all("Requires-Dist", [])]
    if not requires:
        requires = list(_parse_requires_txt(view.text(f"{where}/requires.txt")))
    return InstalledDistribution(
        name=normalised_name(called),
        version=version,
        place=folder,
        editable=_editable_source(view, where) or editables.sources.get(normalised_name(called), ""),
        requires=tuple(requires),
        extras=tuple(str(item).strip() for item in headers.get_all("Provides-Extra", [])),
    )


def _editable_source(view: FilesystemView, where: str) -> str:
    """The source of an editable install by direct_url.json (PEP 610); empty if it is none."""
    try:
        told = json.loads(view.text(f"{where}/direct_url.json") or "{}")
        editable, url = told.get("dir_info", {}).get("editable"), urlsplit(told.get("url", ""))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
    return posixpath.normpath(unquote(url.path)) if editable is True and url.scheme == "file" else ""


def _parse_requires_txt(text: str) -> Iterator[str]:
    """Requirements of an egg's requires.txt, whose sections are [extra], [:marker] and [extra:marker]."""
    conditions: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            extra, _, marker = line.strip("[]").partition(":")
            conditions = [f"({marker})"] if marker else []
            conditions += [f'extra == "{extra}"'] if extra else []
        elif not line.startswith("#"):
            yield f"{line} ; {' and '.join(conditions)}" if conditions else line
