"""lock → the Python packages of the image, one tar a layer: wheels fetched by hash, installed, compiled."""

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
from pipeline.lock import lock, place, resolver
from pipeline.lock.contents import CombinedLock, DebianLock, Lock
from pipeline.lock.place import Place

AT_ONCE = 6000  # files compiled between two signs of life
SUMMARY = "layers.json"
ADDED = "added"  # the one layer of what is added to another image
EXPANSION = 5  # how much larger a tree with bytecode is than its wheels, rounded up


def make_layers(locked: Lock, into: Path, log: Log, present: Mapping[str, str] = tar.NOTHING) -> Wheels:
    """Writes the layers of a lock's wheels to `into`/<layer>.tar and then their list to `into`/layers.json.

    The same lock gives the same bytes on any machine.
    What is `present` in the image below (path → kind) is not touched. Raises TandemError for a wheel that cannot be
    had, that holds code of another architecture, or that would take the place of a file that is present.
    """
    found = fetch(locked, log)
    into.mkdir(parents=True, exist_ok=True)
    (into / SUMMARY).unlink(missing_ok=True)
    size = EXPANSION * sum(wheel.size for wheel in locked.wheels)
    with tempfile.TemporaryDirectory(prefix=".python-", dir=into) as tools, scratch_folder(size, into) as scratch:
        python = bytecode.extract_python(locked, Path(tools), log) if locked.interpreter else ()
        return assemble_layers(locked, found, python, scratch, into, log, present)


def assemble_layers(
    locked: Lock,
    found: Mapping[str, Path],
    python: Sequence[str],
    scratch: Path,
    into: Path,
    log: Log,
    present: Mapping[str, str] = tar.NOTHING,
) -> Wheels:
    """Does what make_layers() does once it has the wheels (distribution → file) and perhaps the image's Python."""
    with step(log, f"installing {len(found)} wheels for {locked.platform}"):
        distributions = install(locked, found, scratch, log)
    site = scratch / "tree"
    refuse_foreign(site, distributions, locked)
    compiled: set[str] = set()
    if python:
        with step(log, "bytecode of the wheels"):
            compiled = compile_all(site, locked.place, distributions, python, log)
    contents = {d.name: members(site, d, compiled, locked.place, locked.python) for d in distributions}
    refuse_present(contents, present, f"dockerfiles/{locked.name}/image.yaml")
    sizes = {name: _size(members) for name, members in contents.items()}
    plan = _plan(locked, sizes)
    for old in into.glob("*.tar"):
        old.unlink()
    with step(log, f"{len(plan)} layers"):
        digests = _write(plan, contents, into, locked.epoch, present)
    return _summary(plan, digests, sum(map(len, contents.values())), into)


def _plan(locked: Lock, sizes: Mapping[str, int]) -> tuple[Layer, ...]:
    match locked:
        case DebianLock():
            return layers.plan(sizes)
        case CombinedLock():
            return (Layer(ADDED, tuple(sorted(sizes)), sum(sizes.values())),)


def fetch(locked: Lock, log: Log) -> dict[str, Path]:
    """Every locked wheel, from the store or else from the host's index: files in the store by distribution.

    Raises TandemError that names a wheel which is in neither place, with the re-lock of that one package.
    """
    missing = [wheel for wheel in locked.wheels if store.get(wheel.sha256) is None]
    urls = resolver.locate(missing, lock.target(locked), log) if missing else {}
    items = [
        store.Item(wheel.file, (urls[wheel.sha256],) if wheel.sha256 in urls else (), wheel.sha256, wheel.size)
        for wheel in locked.wheels
    ]
    try:
        paths = store.fetch_all(items, log, title="wheels")
    except store.MissingError as error:
        name = next(wheel.name for wheel in locked.wheels if wheel.sha256 == error.item.sha256)
        raise TandemError(
            f"lockfiles/{locked.name}.requirements.txt: {error}",
            hint=f"`TANDEM_LOCK=upgrade:{name} ./doitw lock:{locked.name}` locks this one anew",
        ) from error
    return {wheel.name: paths[wheel.sha256] for wheel in locked.wheels}


def install(locked: Lock, found: Mapping[str, Path], scratch: Path, log: Log) -> tuple[Distribution, ...]:
    """Install the wheels below `scratch`/tree as they shall be in the image; see tree.normalise()."""
    links = scratch / "links"
    links.mkdir()
    for wheel in locked.wheels:
        (links / wheel.file).symlink_to(found[wheel.name])
    requirements = scratch / "requirements.txt"
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in locked.wheels]
    requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv = [resolver.uv(), *words(locked, links, requirements, scratch)]
    log.line("$ " + " ".join(["uv", *argv[1:]]))
    env = {"UV_NO_INSTALLER_METADATA": "1", "UV_PYTHON_DOWNLOADS": "never"}
    procs.capture(argv, env=env, cwd=scratch, within=900)
    return installed_tree.normalise(
        scratch / "tree", locked.place, {wheel.name: links / wheel.file for wheel in locked.wheels}
    )


def words(locked: Lock, links: Path, requirements: Path, scratch: Path) -> list[str]:
    """What uv is told: the target's wheels and no others, from the folder `links` and from nowhere else."""
    target = lock.target(locked)
    return [
        "pip", "install", "--requirements", str(requirements), "--target", str(scratch / "tree"),
        "--python", sys.executable,  # uv looks for none, and installs for another
        "--python-version", locked.python,
        "--python-platform", f"{target.machine}-manylinux_2_{min(target.glibc, resolver.NEWEST_GLIBC)}",
        "--no-config", "--no-deps", "--require-hashes", "--only-binary", ":all:",
        "--no-index", "--find-links", str(links),
        # A cache of its own that goes with it: then its files may be linked and changed, and are written once.
        "--cache-dir", str(scratch / "cache"), "--link-mode", "hardlink",
        "--color", "never", "--no-progress", "--quiet",
    ]  # fmt: skip


def compile_all(
    site: Path, place: Place, distributions: Iterable[Distribution], argv: Sequence[str], log: Log
) -> set[str]:
    """Compile every module of the tree; returns the paths in the tree of the .pyc files that this made."""
    names = sorted(path for d in distributions for path in d.files if _importable(path))
    made: set[str] = set()
    done = 0
    for part in portions(names):
        log.progress("bytecode", done, len(names), "files")
        made.update(bytecode.compile_tree(argv, site, "/" + place.site, part))
        done += len(part)
    return made


def portions(names: Sequence[str]) -> Iterator[list[str]]:
    """Files to compile at once, whole folders together: what a folder's bytecode is may not depend on others."""
    portion: list[str] = []
    for _, folder in itertools.groupby(sorted(names, key=os.path.split), os.path.dirname):
        portion += folder
        if len(portion) >= AT_ONCE:
            yield portion
            portion = []
    yield portion


def _importable(path: str) -> bool:
    return path.endswith(".py") and path.partition("/")[0] not in place.DATA


def pyc(path: str, python: str) -> str:
    """Where Python `python` looks for the bytecode of a source."""
    folder, _, file = path.rpartition("/")
    name = f"__pycache__/{file.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"
    return f"{folder}/{name}" if folder else name


def members(site: Path, distribution: Distribution, compiled: set[str], place: Place, python: str) -> dict[str, Path]:
    """A distribution's files and bytecode: path in the image → file."""
    files = {there: site / path for path, there in distribution.files.items()}
    for path in distribution.files:
        if path.endswith(".py") and (made := pyc(path, python)) in compiled:
            files[f"{place.site}/{made}"] = site / made
    return files


def _size(members: Mapping[str, Path]) -> int:
    return sum(path.lstat().st_size for path in members.values())


def refuse_foreign(site: Path, distributions: Iterable[Distribution], locked: Lock) -> None:
    """Raise TandemError that names a distribution with machine code for another architecture than the lock's."""
    for distribution in distributions:
        files = {path: site / path for path in distribution.files if not (site / path).is_symlink()}
        if wrong := installed_tree.foreign(files, locked.arch):
            raise TandemError(
                f"{distribution.name} holds code that does not run on {locked.platform}: {', '.join(wrong[:5])}",
                hint="constrain it to a version whose wheel is right (python.constraints)",
            )


def refuse_present(contents: Mapping[str, Iterable[str]], present: Mapping[str, str], origin: str) -> None:
    """Raise TandemError that names a distribution with a file at a path where the image below has something."""
    for name, paths in contents.items():
        if taken := tar.taken(paths, present):
            raise TandemError(
                f"{origin}: python.requirements: {name} would take the place of what is in the base already:"
                f" /{', /'.join(taken[:5])}",
                hint=f"nothing inside may change: do without {name}, or use a base without these files",
            )


def _write(
    plan: Sequence[Layer],
    contents: Mapping[str, Mapping[str, Path]],
    into: Path,
    epoch: int,
    present: Mapping[str, str],
) -> dict[str, str]:
    def one(layer: Layer) -> str:
        members = {path: file for name in layer.distributions for path, file in contents[name].items()}
        return tar.write(into / f"{layer.name}.tar", members, epoch, present=present)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip((layer.name for layer in plan), pool.map(one, plan), strict=True))


def _summary(plan: Sequence[Layer], digests: Mapping[str, str], files: int, into: Path) -> Wheels:
    listed = [{"name": layer.name, "sha256": digests[layer.name], "size": layer.size} for layer in plan]
    text = json.dumps(listed, indent=1) + "\n"
    write_whole(into / SUMMARY, text, sync=False)
    digest = f"sha256:{store.digest(into / SUMMARY)}"
    return Wheels(digest=digest, layers=dict(digests), files=files, size=sum(layer.size for layer in plan))
