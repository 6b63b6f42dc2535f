"""An image's own files, as one archive: the folder `files`, the distributions and the aliases of image.yaml."""

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

LINKED_FOLDERS = ("bin", "lib", "lib64", "sbin")
"""The links of a merged /usr: a folder of that name in a layer would replace the link."""
MOUNTED_FOLDERS = ("dev", "proc", "sys")
TWICE_HINT = "an image cannot have a distribution twice: give it another name, or leave it out"
LEFT_OUT = re.compile(r"(^|/)(__pycache__|\.git|\.DS_Store)(/|$)|\.pyc$|~$")


@dataclass(frozen=True, kw_only=True)
class Below:
    """The base that the layer of own files lies on, if the image is on top of another image."""

    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    """The launcher's files, which image.yaml's own may replace: path below the root → content and mode."""
    links: Mapping[str, str] = field(default_factory=dict)
    """The launcher's links, likewise: path below the root → target."""
    folders: tuple[str, ...] = ()
    """The folders that are made, if they are not there."""
    present: Mapping[str, str] = field(default_factory=dict)
    """The paths of the base image and of the layers of wheels, with their kind; none of them is replaced."""


NOTHING_BELOW = Below()


def write_own_files(
    name: str,
    image: Image,
    locked: Lock,
    folder: Path,
    python: Callable[[], Sequence[str]],
    scratch: Path,
    into: Path,
    below: Below = NOTHING_BELOW,
) -> str:
    """Writes the archive of an image's own files; returns its SHA-256.

    `folder` is dockerfiles/<image>. `python` extracts the locked Python and returns its argv; it is called only if
    there is something to compile. Raises ConfigError that names the key and what it points to.
    """
    check_aliases(name, image, locked)
    refuse_taken_names(name, image, locked, folder)
    root, place = scratch / "own", locked.place
    site = root / place.site
    site.mkdir(parents=True)
    _write_launcher_files(below, root)
    if image.files:
        copy_overlay(folder / image.files, root, f"dockerfiles/{name}/image.yaml: files: {image.files}")
    for alias in image.aliases:
        project = {"name": alias.name, "version": alias.version, "description": f"another name of {alias.of}"}
        _write_distribution(site, alias.name, alias.version, {}, {"METADATA": _metadata(project)})
    for entry in image.distributions:
        where = f"dockerfiles/{name}/image.yaml: distributions: {entry}"
        install_distribution(folder / entry, root, place, where)
    sources = sorted(str(path.relative_to(site)) for path in site.rglob("*.py"))
    if sources and locked.interpreter:
        bytecode.compile_tree(python(), site, "/" + place.site, sources)
    members = {
        path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_symlink() or path.is_file()
    }
    if tar.conflicting_members([f"{folder}/x" for folder in below.folders], below.present):
        raise ConfigError(
            f"dockerfiles/{name}/image.yaml: workdir: the base has a file at {image.workdir} or above it",
            hint="name a folder, as in /workspace/vllm",
        )
    replaceable = {*below.files, *below.links}
    if taken := tar.conflicting_members(members.keys() - replaceable, below.present):
        raise ConfigError(
            f"dockerfiles/{name}/image.yaml: files, distributions: the base or an added wheel has these files:"
            f" /{', /'.join(taken[:5])}",
            hint="nothing inside may change: give them other names, or use another base",
        )
    return tar.write_archive(into, members, locked.epoch, below.folders, below.present)


def _write_launcher_files(below: Below, root: Path) -> None:
    for path, (content, mode) in below.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(mode)
    for path, target in below.links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)


def refuse_taken_names(name: str, image: Image, locked: Lock, folder: Path) -> None:
    """Raises ConfigError for an own distribution or an alias whose name the image already has.

    The name may be that of a locked wheel, of a distribution of the base, or of another one of ours.
    """
    origin, versions = f"dockerfiles/{name}/image.yaml", locked.versions
    own_names = {f"{origin}: aliases[{i}].name": alias.name for i, alias in enumerate(image.aliases)}
    own_names |= {where: str(project["name"]) for where, project in projects(name, image, folder).items()}
    first_uses: dict[str, str] = {}
    for where, own_name in own_names.items():
        normalised = names.normalised_name(own_name)
        if version := versions.get(normalised):
            raise ConfigError(f"{where}: {own_name} {version} is in the image already", hint=TWICE_HINT)
        if (first := first_uses.setdefault(normalised, where)) != where:
            raise ConfigError(
                f"{where}: {first.removeprefix(f'{origin}: ')} already has the name {own_name}", hint=TWICE_HINT
            )


def projects(name: str, image: Image, folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the table `project` of each own distribution, by the place that names it. Raises ConfigError."""
    places = {f"dockerfiles/{name}/image.yaml: distributions: {entry}": folder / entry for entry in image.distributions}
    return {where: _read_project(place, where) for where, place in places.items()}


def copy_overlay(source: Path, root: Path, where: str) -> None:
    """Copies a folder's files and links below `root`. Raises ConfigError for a path that a layer cannot have."""
    if not source.is_dir():
        raise ConfigError(f"{where}: no such folder")
    for path, file in _files(source):
        top = path.partition("/")[0]
        if top in LINKED_FOLDERS:
            raise ConfigError(f"{where}: {path}: /{top} is a link in the base", hint=f"put it below usr/{top}/")
        if top in MOUNTED_FOLDERS:
            raise ConfigError(f"{where}: {path}: engines mount their own /{top}")
        if not file.is_symlink() and not file.is_file():
            raise ConfigError(f"{where}: {path}: neither a file nor a link")
        if (root / path).is_dir():
            raise ConfigError(
                f"{where}: {path}: it is a folder in the image", hint="remove it, or give it another name"
            )
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / path, follow_symlinks=False)


def install_distribution(folder: Path, root: Path, place: Place, where: str) -> None:
    """Installs a pure-Python project: its modules and packages as they are, its metadata from pyproject.toml.

    It runs none of the project's code and needs no network. Raises ConfigError for a project without name, version or
    modules.
    """
    project = _read_project(folder, where)
    name, version = project["name"], project["version"]
    modules = {path: file for path, file in _files(folder) if _is_module(folder, path)}
    if not modules:
        raise ConfigError(f"{where}: it contains no module and no package")
    content = {path: file.read_bytes() for path, file in modules.items()}
    meta = {"METADATA": _metadata(project)}
    groups = {
        **({"console_scripts": project["scripts"]} if "scripts" in project else {}),
        **project.get("entry-points", {}),
    }
    if groups:
        meta["entry_points.txt"] = _entry_points(groups)
    for script, target in project.get("scripts", {}).items():
        _write_script(root / place.scripts / script, target, place.shebang)
    _write_distribution(root / place.site, name, version, content, meta)


def _read_project(folder: Path, where: str) -> dict[str, Any]:
    """Return the table `project` of a pyproject.toml, with a name and a version. Raises ConfigError."""
    try:
        project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        _ = project["name"], project["version"]
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{where}/pyproject.toml: project.name and project.version are needed: {error}") from error
    return project


def _is_module(folder: Path, path: str) -> bool:
    top, _, below = path.partition("/")
    return (folder / top / "__init__.py").is_file() if below else top.endswith(".py")


def _write_distribution(
    site: Path, name: str, version: str, content: Mapping[str, bytes], meta: Mapping[str, str]
) -> None:
    """Write an installed distribution: its files, and its dist-info with WHEEL and RECORD."""
    info = f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    files = {**content, **{f"{info}/{key}": text.encode() for key, text in meta.items()}}
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tandem\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = installed_tree.record_text(files, f"{info}/RECORD").encode()
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


def _write_script(path: Path, target: str, shebang: bytes) -> None:
    module, _, function = target.partition(":")
    path.parent.mkdir(parents=True, exist_ok=True)
    call = f"import sys\n\nfrom {module} import {function.partition('.')[0]}\n\nsys.exit({function}())\n"
    path.write_bytes(shebang + call.encode())
    path.chmod(0o755)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files and links below a folder with their paths there, without the leavings of editors and Python."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_symlink() or not path.is_dir()) and not LEFT_OUT.search(name):
            yield name, path
