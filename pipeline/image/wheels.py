"""The Python packages of an image, one tar a layer: wheels are fetched by hash, installed, compiled."""

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.core import procs, store, tar
from pipeline.core.errors import TandemError
from pipeline.core.files import write_whole
from pipeline.core.log import Log, step
from pipeline.core.scratch import scratch_folder
from pipeline.image import bytecode, installed_tree, layers
from pipeline.image.installed_tree import Distribution
from pipeline.image.layers import Layer
from pipeline.image.results import Wheels
from pipeline.lock import lock, place, resolver, uv
from pipeline.lock.contents import CombinedLock, DebianLock, Lock
from pipeline.lock.place import Place

FILES_AT_ONCE = 6000
"""How many files are compiled between two signs of progress."""
INSTALL_TIMEOUT_S = 900
LAYERS_FILE = "layers.json"
ADDED_LAYER = "added"
"""The one layer of an image on top of another image."""
EXPANSION = 5
"""How much larger a tree with bytecode is than its wheels, rounded up."""


def make_layers(locked: Lock, into: Path, log: Log, present: Mapping[str, str] = tar.NO_PATHS) -> Wheels:
    """Writes the layers of a lock's wheels to `into`/<layer>.tar and then their list to `into`/layers.json.

    The same lock gives the same bytes on any machine.
    No path that is `present` in the base image (path → kind) is replaced. Raises TandemError for a wheel that cannot be
    fetched, holds code for another architecture, or would replace a file that is present.
    """
    files = fetch_wheels(locked, log)
    into.mkdir(parents=True, exist_ok=True)
    (into / LAYERS_FILE).unlink(missing_ok=True)
    size = EXPANSION * sum(wheel.size for wheel in locked.wheels)
    with (
        tempfile.TemporaryDirectory(prefix=".python-", dir=into) as folder,
        scratch_folder(size, into) as scratch,
    ):
        python = bytecode.extract_python(locked, Path(folder), log) if locked.interpreter else ()
        return assemble_layers(locked, files, python, scratch, into, log, present)


def assemble_layers(
    locked: Lock,
    wheels: Mapping[str, Path],
    python: Sequence[str],
    scratch: Path,
    into: Path,
    log: Log,
    present: Mapping[str, str] = tar.NO_PATHS,
) -> Wheels:
    """Does what make_layers() does after the downloads.

    `wheels` are files by distribution; `python` is what bytecode.extract_python() returns, or empty for no bytecode.
    """
    with step(log, f"installing {len(wheels)} wheels for {locked.platform}"):
        distributions = install_wheels(locked, wheels, scratch, log)
    site = scratch / "tree"
    refuse_wrong_architecture(site, distributions, locked)
    compiled: set[str] = set()
    if python:
        with step(log, "bytecode of the wheels"):
            compiled = compile_modules(site, locked.place, distributions, python, log)
    contents = {d.name: layer_members(site, d, compiled, locked.place, locked.python) for d in distributions}
    refuse_replacing(contents, present, f"dockerfiles/{locked.name}/image.yaml")
    sizes = {name: _size(members) for name, members in contents.items()}
    plan = _plan(locked, sizes)
    for old in into.glob("*.tar"):
        old.unlink()
    with step(log, f"{len(plan)} layers"):
        hashes = _write_layers(plan, contents, into, locked.epoch, present)
    return _write_list(plan, hashes, sum(map(len, contents.values())), into)


def _plan(locked: Lock, sizes: Mapping[str, int]) -> tuple[Layer, ...]:
    match locked:
        case DebianLock():
            return layers.plan_layers(sizes)
        case CombinedLock():
            return (Layer(ADDED_LAYER, tuple(sorted(sizes)), sum(sizes.values())),)


def fetch_wheels(locked: Lock, log: Log) -> dict[str, Path]:
    """Fetches every locked wheel, from the store or the host's index; returns the files in the store by distribution.

    Raises TandemError that names a wheel which neither has, with the command that locks this one package again.
    """
    missing = [wheel for wheel in locked.wheels if store.stored_file(wheel.sha256) is None]
    urls = resolver.locate_wheels(missing, lock.wheel_target(locked), log) if missing else {}
    items = [
        store.Download(wheel.file, (urls[wheel.sha256],) if wheel.sha256 in urls else (), wheel.sha256, wheel.size)
        for wheel in locked.wheels
    ]
    try:
        paths = store.fetch_all(items, log, title="wheels")
    except store.MissingFileError as error:
        name = next(wheel.name for wheel in locked.wheels if wheel.sha256 == error.item.sha256)
        raise TandemError(
            f"lockfiles/{locked.name}.requirements.txt: {error}",
            hint=f"`TANDEM_LOCK=upgrade:{name} ./doitw lock:{locked.name}` locks this one again",
        ) from error
    return {wheel.name: paths[wheel.sha256] for wheel in locked.wheels}


def install_wheels(locked: Lock, wheels: Mapping[str, Path], scratch: Path, log: Log) -> tuple[Distribution, ...]:
    """Installs the wheels below `scratch`/tree as the image shall have them; returns the distributions.

    Raises TandemError for a wheel with another hash than the lock's, and as installed_tree.normalise_tree().
    """
    links = scratch / "links"
    links.mkdir()
    for wheel in locked.wheels:
        (links / wheel.file).symlink_to(wheels[wheel.name])
    requirements = scratch / "requirements.txt"
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in locked.wheels]
    requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv = [uv.find_program(), *uv_arguments(locked, links, requirements, scratch)]
    log.line("$ " + " ".join(["uv", *argv[1:]]))
    env = {"UV_NO_INSTALLER_METADATA": "1", "UV_PYTHON_DOWNLOADS": "never"}
    procs.capture(argv, env=env, cwd=scratch, timeout_s=INSTALL_TIMEOUT_S)
    return installed_tree.normalise_tree(
        scratch / "tree", locked.place, {wheel.name: links / wheel.file for wheel in locked.wheels}
    )


def uv_arguments(locked: Lock, links: Path, requirements: Path, scratch: Path) -> list[str]:
    """Returns uv's arguments: it installs the target's wheels from the folder `links`, and from nowhere else."""
    target = lock.wheel_target(locked)
    return [
        "pip", "install", "--requirements", str(requirements), "--target", str(scratch / "tree"),
        "--python", sys.executable,  # uv looks for none, and installs for another
        "--python-version", locked.python,
        "--python-platform", f"{target.machine}-manylinux_2_{min(target.glibc, resolver.NEWEST_GLIBC)}",
        "--no-config", "--no-deps", "--require-hashes", "--only-binary", ":all:",
        "--no-index", "--find-links", str(links),
        # Its own cache, removed with the scratch folder: files can be linked into the tree and changed there.
        "--cache-dir", str(scratch / "cache"), "--link-mode", "hardlink",
        "--color", "never", "--no-progress", "--quiet",
    ]  # fmt: skip


def compile_modules(
    site: Path, place: Place, distributions: Iterable[Distribution], argv: Sequence[str], log: Log
) -> set[str]:
    """Compiles every module of the tree; returns the paths of the .pyc files in the tree.

    `argv` is what bytecode.extract_python() returns.
    """
    names = sorted(path for d in distributions for path in d.files if _is_importable(path))
    compiled: set[str] = set()
    done = 0
    for portion in portions(names):
        log.progress("bytecode", done, len(names), "files")
        compiled.update(bytecode.compile_tree(argv, site, "/" + place.site, portion))
        done += len(portion)
    return compiled


def portions(names: Sequence[str]) -> Iterator[list[str]]:
    """Yields the files to compile at once, whole folders together: a folder's bytecode may not depend on others."""
    portion: list[str] = []
    for _, folder in itertools.groupby(sorted(names, key=os.path.split), os.path.dirname):
        portion += folder
        if len(portion) >= FILES_AT_ONCE:
            yield portion
            portion = []
    yield portion


def _is_importable(path: str) -> bool:
    return path.endswith(".py") and path.partition("/")[0] not in place.DATA_FOLDERS


def bytecode_path(path: str, python: str) -> str:
    """Returns the path at which a Python version, as in 3.13, looks for the bytecode of a source."""
    folder, _, file = path.rpartition("/")
    name = f"__pycache__/{file.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"
    return f"{folder}/{name}" if folder else name


def layer_members(
    site: Path, distribution: Distribution, compiled: set[str], place: Place, python: str
) -> dict[str, Path]:
    """Returns a distribution's files and bytecode: path in the image → file."""
    files = {image_path: site / path for path, image_path in distribution.files.items()}
    for path in distribution.files:
        if path.endswith(".py") and (pyc := bytecode_path(path, python)) in compiled:
            files[f"{place.site}/{pyc}"] = site / pyc
    return files


def _size(members: Mapping[str, Path]) -> int:
    return sum(path.lstat().st_size for path in members.values())


def refuse_wrong_architecture(site: Path, distributions: Iterable[Distribution], locked: Lock) -> None:
    """Raises TandemError that names a distribution with machine code for an architecture other than the lock's."""
    for distribution in distributions:
        files = {path: site / path for path in distribution.files if not (site / path).is_symlink()}
        if wrong := installed_tree.wrong_architecture(files, locked.arch):
            raise TandemError(
                f"{distribution.name} holds code that does not run on {locked.platform}: {', '.join(wrong[:5])}",
                hint="constrain it to a version whose wheel is right (python.constraints)",
            )


def refuse_replacing(contents: Mapping[str, Iterable[str]], present: Mapping[str, str], origin: str) -> None:
    """Raises TandemError that names a distribution with a file at a path that is present in the base image."""
    for name, paths in contents.items():
        if taken := tar.conflicting_members(paths, present):
            raise TandemError(
                f"{origin}: python.requirements: {name} would replace files of the base: /{', /'.join(taken[:5])}",
                hint=f"nothing inside may change: do without {name}, or use a base without these files",
            )


def _write_layers(
    plan: Sequence[Layer],
    contents: Mapping[str, Mapping[str, Path]],
    into: Path,
    epoch: int,
    present: Mapping[str, str],
) -> dict[str, str]:
    def write(layer: Layer) -> str:
        members = {path: file for name in layer.distributions for path, file in contents[name].items()}
        return tar.write_archive(into / f"{layer.name}.tar", members, epoch, present=present)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip((layer.name for layer in plan), pool.map(write, plan), strict=True))


def _write_list(plan: Sequence[Layer], hashes: Mapping[str, str], files: int, into: Path) -> Wheels:
    rows = [{"name": layer.name, "sha256": hashes[layer.name], "size": layer.size} for layer in plan]
    text = json.dumps(rows, indent=1) + "\n"
    write_whole(into / LAYERS_FILE, text, sync=False)
    digest = f"sha256:{store.file_digest(into / LAYERS_FILE)}"
    return Wheels(digest=digest, layers=dict(hashes), files=files, size=sum(layer.size for layer in plan))
