"""Our own files of an image, as one archive: what image.yaml lays over the root, its distributions, its aliases."""

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.models import Image
from pipeline.core import names, tar
from pipeline.core.errors import ConfigError
from pipeline.image import bytecode, installed_tree
from pipeline.lock.aliases import check_aliases
from pipeline.lock.contents import Lock
from pipeline.lock.place import Place

# Links of a merged /usr: a folder of that name in a layer would take the link's place.
MERGED = ("bin", "lib", "lib64", "sbin")
MOUNTED = ("dev", "proc", "sys")
TWICE = "no distribution can be there twice: give it another name, or leave it out"
JUNK = re.compile(r"(^|/)(__pycache__|\.git|\.DS_Store)(/|$)|\.pyc$|~$")


@dataclass(frozen=True, kw_only=True)
class Below:
    """What the layer of own files lies on, if the image is on top of another image."""

    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    """The launcher's files, which image.yaml's own may replace: path below the root → content and mode."""
    links: Mapping[str, str] = field(default_factory=dict)
    """The launcher's links, likewise: path below the root → target."""
    folders: tuple[str, ...] = ()
    """The folders that are made, if they are not there."""
    present: Mapping[str, str] = field(default_factory=dict)
    """The paths of the base image and of the layers of wheels, with their kind; none of them is replaced."""


NOTHING_BELOW = Below()


def write(
    name: str,
    image: Image,
    locked: Lock,
    folder: Path,
    python: Callable[[], Sequence[str]],
    scratch: Path,
    into: Path,
    below: Below = NOTHING_BELOW,
) -> str:
    """Write the archive of an image's own files; `folder` is dockerfiles/<image>. Returns its SHA-256.

    `python` returns the argv of the locked interpreter; it is called only if there is anything to compile. Raises
    ConfigError that names the key and what it points to.
    """
    check_aliases(name, image, locked)
    refuse_known(name, image, locked, folder)
    root, place = scratch / "own", locked.place
    site = root / place.site
    site.mkdir(parents=True)
    _lay(below, root)
    if image.files:
        overlay(folder / image.files, root, f"dockerfiles/{name}/image.yaml: files: {image.files}")
    for alias in image.aliases:
        project = {"name": alias.name, "version": alias.version, "description": f"another name of {alias.of}"}
        _put(site, alias.name, alias.version, {}, {"METADATA": _metadata(project)})
    for entry in image.distributions:
        where = f"dockerfiles/{name}/image.yaml: distributions: {entry}"
        distribution(folder / entry, root, place, where)
    sources = sorted(str(path.relative_to(site)) for path in site.rglob("*.py"))
    if sources and locked.interpreter:
        bytecode.compile_tree(python(), site, "/" + place.site, sources)
    members = {
        path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_symlink() or path.is_file()
    }
    if tar.taken([f"{folder}/x" for folder in below.folders], below.present):
        raise ConfigError(
            f"dockerfiles/{name}/image.yaml: workdir: the base has a file at {image.workdir} or above it",
            hint="name a folder, as in /workspace/vllm",
        )
    laid = {*below.files, *below.links}
    if taken := tar.taken(members.keys() - laid, below.present):
        raise ConfigError(
            f"dockerfiles/{name}/image.yaml: files, distributions: it is in the base or among what is added:"
            f" /{', /'.join(taken[:5])}",
            hint="nothing inside may change: give it another name, or use another base",
        )
    return tar.write(into, members, locked.epoch, below.folders, below.present)


def _lay(below: Below, root: Path) -> None:
    for path, (content, mode) in below.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(mode)
    for path, to in below.links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(to)


def refuse_known(name: str, image: Image, locked: Lock, folder: Path) -> None:
    """Raise ConfigError for a distribution of ours, or an alias, with a name that the image has already.

    It is one of what is locked or inside, or another of ours.
    """
    origin, there = f"dockerfiles/{name}/image.yaml", locked.versions
    given = {f"{origin}: aliases[{i}].name": alias.name for i, alias in enumerate(image.aliases)}
    given |= {where: str(project["name"]) for where, project in projects(name, image, folder).items()}
    ours: dict[str, str] = {}
    for where, called in given.items():
        known = names.normalised_name(called)
        if version := there.get(known):
            raise ConfigError(f"{where}: {called} {version} is in the image already", hint=TWICE)
        if (other := ours.setdefault(known, where)) != where:
            raise ConfigError(f"{where}: {called} is what {other.removeprefix(f'{origin}: ')} is called", hint=TWICE)


def projects(name: str, image: Image, folder: Path) -> dict[str, dict[str, Any]]:
    """Each distribution of our own: the place that names it → the table `project`. Raises ConfigError."""
    places = {f"dockerfiles/{name}/image.yaml: distributions: {entry}": folder / entry for entry in image.distributions}
    return {where: _project(place, where) for where, place in places.items()}


def overlay(source: Path, root: Path, where: str) -> None:
    """Copy a folder's files and links below `root`. Raises ConfigError for what cannot lie in a layer of ours."""
    if not source.is_dir():
        raise ConfigError(f"{where}: no such folder")
    for path, file in _files(source):
        top = path.partition("/")[0]
        if top in MERGED:
            raise ConfigError(f"{where}: {path}: /{top} is a link in the base", hint=f"put it below usr/{top}/")
        if top in MOUNTED:
            raise ConfigError(f"{where}: {path}: engines mount something of their own on /{top}")
        if not file.is_symlink() and not file.is_file():
            raise ConfigError(f"{where}: {path}: neither a file nor a link")
        if (root / path).is_dir():
            raise ConfigError(f"{where}: {path}: it is a folder in the image", hint="take it out, or name it otherwise")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / path, follow_symlinks=False)


def distribution(folder: Path, root: Path, place: Place, where: str) -> None:
    """Install a pure-Python project: its modules and packages as they are, its metadata from pyproject.toml.

    Nothing of it is run, no network is needed. Raises ConfigError for a project without name, version or modules.
    """
    project = _project(folder, where)
    name, version = project["name"], project["version"]
    modules = {path: file for path, file in _files(folder) if _module(folder, path)}
    if not modules:
        raise ConfigError(f"{where}: no module and no package in it")
    content = {path: file.read_bytes() for path, file in modules.items()}
    meta = {"METADATA": _metadata(project)}
    groups = {
        **({"console_scripts": project["scripts"]} if "scripts" in project else {}),
        **project.get("entry-points", {}),
    }
    if groups:
        meta["entry_points.txt"] = _entry_points(groups)
    for script, target in project.get("scripts", {}).items():
        _script(root / place.scripts / script, target, place.shebang)
    _put(root / place.site, name, version, content, meta)


def _project(folder: Path, where: str) -> dict[str, Any]:
    """The table `project` of a pyproject.toml, with a name and a version. Raises ConfigError."""
    try:
        found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        _ = found["name"], found["version"]
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{where}/pyproject.toml: project.name and project.version are needed: {error}") from error
    return found


def _module(folder: Path, path: str) -> bool:
    top, _, below = path.partition("/")
    return (folder / top / "__init__.py").is_file() if below else top.endswith(".py")


def _put(site: Path, name: str, version: str, content: Mapping[str, bytes], meta: Mapping[str, str]) -> None:
    """Write an installed distribution: its files, and its dist-info with WHEEL and RECORD."""
    info = f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    files = {**content, **{f"{info}/{key}": text.encode() for key, text in meta.items()}}
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tandem\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = installed_tree.record(files, f"{info}/RECORD").encode()
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)


def _metadata(project: Mapping[str, Any]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    if summary := project.get("description"):
        lines.append("Summary: " + " ".join(str(summary).split()))
    if requires := project.get("requires-python"):
        lines.append(f"Requires-Python: {requires}")
    lines += [f"Requires-Dist: {requirement}" for requirement in project.get("dependencies", ())]
    return "\n".join(lines) + "\n"


def _entry_points(groups: Mapping[str, Mapping[str, str]]) -> str:
    blocks = []
    for group in sorted(groups):
        lines = [f"{key} = {groups[group][key]}" for key in sorted(groups[group])]
        blocks.append("\n".join([f"[{group}]", *lines, ""]))
    return "\n".join(blocks)


def _script(path: Path, target: str, shebang: bytes) -> None:
    module, _, function = target.partition(":")
    path.parent.mkdir(parents=True, exist_ok=True)
    call = f"import sys\n\nfrom {module} import {function.partition('.')[0]}\n\nsys.exit({function}())\n"
    path.write_bytes(shebang + call.encode())
    path.chmod(0o755)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Everything below a folder but folders, by its path there; what editors and Python leave is passed over."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_symlink() or not path.is_dir()) and not JUNK.search(name):
            yield name, path
