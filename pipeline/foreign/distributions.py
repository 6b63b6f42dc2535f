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
from pipeline.foreign.facts import Inside
from pipeline.foreign.filesystem import Rule, View

SMALL = 256 << 10
RULES: tuple[Rule, ...] = (
    # The headers, which come first; what follows is a description of any length.
    (re.compile(r"\.dist-info/METADATA$|\.egg-info/PKG-INFO$|\.egg-info$|/EGG-INFO/PKG-INFO$"), SMALL),
    (re.compile(r"\.dist-info/direct_url\.json$|(\.egg-info|/EGG-INFO)/requires\.txt$|\.egg-link$"), SMALL),
    (re.compile(r"/__editable___[^/]*_finder\.py$"), SMALL),
)


@dataclass(frozen=True)
class Found:
    """The distributions that count, the first of each name on the path; and in words what is wrong with the rest."""

    distributions: tuple[Inside, ...]
    oddities: tuple[str, ...]


@dataclass(frozen=True)
class _Editables:
    """What the site folders say of editable installs: name (normalised) → folder with the source."""

    sources: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)  # top-level module → its folder


def found(view: View, paths: Sequence[str]) -> Found:
    """All distributions in folders of a Python's path, sorted by name."""
    editables = _editables(view, paths)
    first: dict[str, Inside] = {}
    oddities: list[str] = []
    for folder in paths:
        for name in view.names(folder):
            if name.startswith("~") or not (name.endswith((".dist-info", ".egg-info")) or name == "EGG-INFO"):
                continue
            inside = _inside(view, folder, name, editables)
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
    return Found(tuple(first[name] for name in sorted(first)), tuple(oddities))


def package(view: View, paths: Sequence[str], name: str) -> str:
    """The folder of a top-level package, where Python imports it from; empty if it is not there.

    Path before finders: setuptools adds its finders at the end of sys.meta_path.
    """
    for folder in paths:
        if view.find(f"{folder}/{name}/__init__.py"):
            return posixpath.join(folder, name)
    mapped = _editables(view, paths).modules.get(name, "")
    return mapped if view.is_dir(mapped) and mapped else ""


def _editables(view: View, paths: Sequence[str]) -> _Editables:
    known = _Editables()
    for folder in paths:
        for name in view.names(folder):
            path = posixpath.join(folder, name)
            if match := re.fullmatch(r"__editable__\.(.+)-([^-]+)\.pth", name):
                lines = [line for line in view.text(path).splitlines() if line.startswith("/")]
                known.sources.update({normalised_name(match[1]): posixpath.normpath(line) for line in lines[:1]})
            elif match := re.fullmatch(r"__editable___(.+)_finder\.py", name):
                modules = _mapping(view.text(path))
                known.modules.update(modules)
                # The module's name has the version behind the distribution's, both with _ for all else.
                label = re.sub(r"_\d.*", "", match[1])
                known.sources.update({normalised_name(label): _root(view, at) for at in list(modules.values())[:1]})
            elif name.endswith(".egg-link"):
                lines = view.text(path).split()
                known.sources.update({normalised_name(name.removesuffix(".egg-link")): line for line in lines[:1]})
    return known


def _mapping(source: str) -> dict[str, str]:
    """MAPPING of a finder module that setuptools writes (setuptools/command/editable_wheel.py): module → folder."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="MAPPING")], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id="MAPPING"), value=ast.expr() as value):
                pass
            case _:
                continue
        try:
            given = ast.literal_eval(value)
        except ValueError:
            return {}
        return {str(key): str(path) for key, path in given.items()} if isinstance(given, dict) else {}
    return {}


def _root(view: View, module: str) -> str:
    """The project that a module's folder belongs to: the nearest above it with a build file, else its parent."""
    at = posixpath.dirname(posixpath.normpath(module))
    nearest = at
    while at not in ("/", ""):
        if any(view.find(f"{at}/{name}") for name in ("pyproject.toml", "setup.py")):
            return at
        at = posixpath.dirname(at)
    return nearest


def _inside(view: View, folder: str, name: str, editables: _Editables) -> Inside | None:
    where = posixpath.join(folder, name)
    file = "METADATA" if name.endswith(".dist-info") else "PKG-INFO"
    text = view.text(f"{where}/{file}") if view.is_dir(where) else view.text(where)
    headers = HeaderParser().parsestr(text)
    called, version = (headers.get("Name") or "").strip(), (headers.get("Version") or "").strip()
    if not called or not version:
        return None
    requires = [" ".join(str(item).split()) for item in headers.get_all("Requires-Dist", [])]
    if not requires:
        requires = list(_requires(view.text(f"{where}/requires.txt")))
    return Inside(
        name=normalised_name(called),
        version=version,
        place=folder,
        editable=_direct(view, where) or editables.sources.get(normalised_name(called), ""),
        requires=tuple(requires),
        extras=tuple(str(item).strip() for item in headers.get_all("Provides-Extra", [])),
    )


def _direct(view: View, where: str) -> str:
    """The source of an editable install by direct_url.json (PEP 610); empty if it is none."""
    try:
        told = json.loads(view.text(f"{where}/direct_url.json") or "{}")
        editable, url = told.get("dir_info", {}).get("editable"), urlsplit(told.get("url", ""))
    except (ValueError, AttributeError, TypeError):
        return ""
    return posixpath.normpath(unquote(url.path)) if editable is True and url.scheme == "file" else ""


def _requires(text: str) -> Iterator[str]:
    """Requirements of an egg's requires.txt, whose sections are [extra], [:marker] and [extra:marker]."""
    conditions: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            extra, _, marker = line.strip("[]").partition(":")
            conditions = [f"({marker})"] if marker else []
            conditions += [f'extra == "{extra}"'] if extra else []
        elif not line.startswith("#"):
            yield f"{line} ; {' and '.join(conditions)}" if conditions else line
