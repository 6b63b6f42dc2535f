"""Stage build: makes one image, known by its digest, of the base, the layers of wheels, and our own files.

BuildKit only copies: the archives already have the owners, modes and times of the image.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config.models import Image
from pipeline.core import tar
from pipeline.core.errors import TandemError
from pipeline.core.log import Log, step
from pipeline.foreign import launcher_layer, pull
from pipeline.foreign.launcher_layer import LauncherLayer
from pipeline.host import buildkit, engine
from pipeline.image import base_paths, bytecode, own_files
from pipeline.image.dockerfile import combined_fillings, debian_fillings, fill_dockerfile
from pipeline.image.own_files import Below
from pipeline.image.results import Built
from pipeline.image.wheels import LAYERS_FILE
from pipeline.lock import lockfile
from pipeline.lock.contents import CombinedLock, DebianLock, Lock


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The files that an image is made of."""

    base: Path
    """The tar of make_root_filesystem(), or the list of pull_base()."""
    wheels: Path
    """The folder of make_layers()."""
    folder: Path
    """dockerfiles/<image>"""


def build(
    name: str, image: Image, locked: Lock, parts: Parts, tag: str, scratch: Path, log: Log, *, cache: bool = True
) -> Built:
    """Builds an image and tags it; the engine must have the containerd image store.

    Without `cache`, BuildKit repeats every step. Raises ConfigError for an image.yaml or a Dockerfile that does not
    fit, TandemError if BuildKit fails or the image is not the expected one.
    """
    context = scratch / "context"
    context.mkdir()
    write_context(name, image, locked, parts, context, log)
    match locked:
        case DebianLock():
            return _build_context(name, locked, context, tag, log, cache=cache, recompress=True)
        case CombinedLock():
            tag_base(locked)
            built = _build_context(name, locked, context, tag, log, cache=cache, recompress=False)
            refuse_other_base(locked, built)
            return built


def _build_context(
    name: str, locked: Lock, context: Path, tag: str, log: Log, *, cache: bool, recompress: bool
) -> Built:
    with step(log, f"building {tag}"):
        digest = buildkit.build_image(
            context,
            platform=locked.platform,
            epoch=locked.epoch,
            labels=image_labels(name, locked),
            tag=tag,
            log=log,
            cache=cache,
            recompress=recompress,
        )
    return find_built(digest, tag, locked.platform)


def find_built(digest: str, tag: str, platform: str) -> Built:
    """Returns what the engine's store has for a digest. Raises TandemError unless it is the image that was built."""
    inspected = engine.find_image("local", digest)
    if inspected is None or inspected["Id"] != digest:
        raise TandemError(
            f"{tag}: buildx made {digest}, but the image store does not have it",
            hint="the engine needs the containerd image store: ./doitw host",
        )
    actual = f"{inspected['Os']}/{inspected['Architecture']}"
    if actual != platform:
        raise TandemError(f"{tag}: built for {actual}, not for {platform}")
    layers = tuple(inspected["RootFS"]["Layers"])
    return Built(digest=digest, tag=tag, platform=platform, diff_ids=layers, size=inspected["Size"])


def base_tag(locked: CombinedLock) -> str:
    """Returns the name under which BuildKit finds the base of a combined image."""
    return f"tandem/base:{locked.base.rpartition(':')[2][:12]}"


def tag_base(locked: CombinedLock) -> None:
    """Tags the base of a combined image in the engine's store; `./doitw gc` removes the tag.

    Given NAME@digest, BuildKit would ask a registry for an image that was never pushed, or that came by `docker load`.
    Raises TandemError if the engine does not have the base, or if the base has ONBUILD instructions.
    """
    from docker.errors import ImageNotFound

    repository, _, tag = base_tag(locked).rpartition(":")
    pull.refuse_onbuild(locked.base)
    with engine.session() as client:
        try:
            client.images.get(locked.base).tag(repository, tag)
        except ImageNotFound as error:
            message = f"the Docker engine does not have {locked.base} any more"
            raise TandemError(message, hint="build again: it is pulled") from error


def refuse_other_base(locked: CombinedLock, built: Built) -> None:
    """Raises TandemError unless the image begins with every layer of the base that was locked."""
    base_layers = locked.facts.layers
    if not base_layers or built.diff_ids[: len(base_layers)] != base_layers:
        raise TandemError(
            f"{built.tag}: it does not begin with the layers of {locked.base} as lockfiles/{locked.name} has them",
            hint=f"`TANDEM_LOCK=upgrade:base ./doitw lock:{locked.name}` reads the base again",
        )


def image_labels(name: str, locked: Lock) -> dict[str, str]:
    """Returns the labels of an image; none has a time or a host name."""
    return {
        "org.opencontainers.image.title": name,
        **_base_labels(locked),
        "tandem.lock": "sha256:" + hash_of_pins(locked),
        "tandem.python": locked.python,
    }


def _base_labels(locked: Lock) -> dict[str, str]:
    key = "org.opencontainers.image.base"
    match locked:
        case DebianLock():
            return {f"{key}.name": f"debian:{locked.suite}"}
        case CombinedLock():
            name, _, digest = locked.base.partition("@")
            return {f"{key}.name": name, f"{key}.digest": digest}


def hash_of_pins(locked: Lock) -> str:
    """Returns a hash over everything that a lock pins, as hex."""
    # Spelled out by hand: a field added later must not change the digests of images.
    text = [locked.platform, locked.python, str(locked.epoch)]
    wheels = [f"{wheel.name} {wheel.version} {wheel.sha256}" for wheel in sorted(locked.wheels)]
    match locked:
        case DebianLock():
            text += [lockfile.format_debs(locked.debs), *wheels]
        case CombinedLock():
            text += [lockfile.format_debs(()), *wheels, locked.base]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def write_context(name: str, image: Image, locked: Lock, parts: Parts, context: Path, log: Log) -> None:
    """Puts every archive and the finished Dockerfile into a build context. Raises ConfigError as build()."""
    layers = [layer["name"] for layer in json.loads((parts.wheels / LAYERS_FILE).read_text(encoding="utf-8"))]
    fillings, below = _add_base(name, image, locked, parts, layers, context, log)
    text = fill_dockerfile(parts.folder / "Dockerfile", fillings)
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    scratch = context.parent
    python = partial(bytecode.extract_python, locked, scratch, log)
    own_files.write_own_files(name, image, locked, parts.folder, python, scratch, context / "own.tar", below)
    for layer in layers:
        _link_or_copy(parts.wheels / f"{layer}.tar", context / f"{layer}.tar")


def _add_base(
    name: str, image: Image, locked: Lock, parts: Parts, layers: Sequence[str], context: Path, log: Log
) -> tuple[dict[str, list[str]], Below]:
    """Put the root filesystem into the context, if there is one; returns the Dockerfile's fillings, and what is below.

    Raises ConfigError for a base image that no layer of ours can make a node.
    """
    match locked:
        case DebianLock():
            tar.write_archive(context / "workdir.tar", {}, locked.epoch, folders=[image.workdir.strip("/")])
            _link_or_copy(parts.base, context / "base.tar")
            return debian_fillings(image, layers), own_files.NOTHING_BELOW
        case CombinedLock():
            launcher = plan_launcher_layer(name, image, locked, log)
            fillings = combined_fillings(image, layers, base_tag(locked), launcher)
            return fillings, _below(launcher, layers, parts)


def _below(launcher: LauncherLayer, layers: Sequence[str], parts: Parts) -> Below:
    present = base_paths.read_paths(parts.base)
    for layer in layers:
        present |= tar.entry_kinds(parts.wheels / f"{layer}.tar")
    folders = launcher.folders
    # Docker creates the WORKDIR of a container, but no longer the base's once the image has another.
    if launcher.serve_folder and not tar.conflicting_members([f"{launcher.serve_folder}/x"], present):
        folders += (launcher.serve_folder,)
    return Below(files=launcher.files, links=launcher.links, folders=folders, present=present)


def plan_launcher_layer(name: str, image: Image, locked: CombinedLock, log: Log) -> LauncherLayer:
    """Returns what a launcher needs on top of the base image, and announces what was decided and what the base lacks.

    Raises ConfigError for faults of the base that no layer can correct.
    """
    launcher = launcher_layer.plan_layer(locked.facts, image.workdir, [wheel.name for wheel in locked.wheels])
    for note in launcher.notes:
        log.step(note)
    for lack in launcher.missing:
        log.step(f"the base lacks {lack}")
    launcher_layer.refuse_unusable_base(f"dockerfiles/{name}/image.yaml", launcher)
    return launcher


def _link_or_copy(source: Path, target: Path) -> None:
    """Make a file available at another place, by a hard link where the file system allows it."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
