"""rootfs + layers of wheels + our own files → an image in the engine's store, known by one digest.

BuildKit copies and nothing else: the archives already have the owners, modes and times that the image shall have.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config.models import Image
from pipeline.core import tar
from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import Log, announce, step
from pipeline.foreign import launcher_layer as launcher
from pipeline.foreign.launcher_layer import LauncherLayer
from pipeline.host import buildkit, engine
from pipeline.image import base_paths, bytecode, own_files
from pipeline.image.own_files import Below
from pipeline.image.results import Built
from pipeline.image.wheels import SUMMARY
from pipeline.lock import lockfile
from pipeline.lock.contents import CombinedLock, DebianLock, Lock

BASE, LAYERS, SETTINGS = "#: base", "#: layers", "#: settings"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an image is put together from: the rootfs tar, the folder of wheels.make_layers(), and dockerfiles/<image>.

    On another image `base` is the list of that one's paths, of base_paths.pull_base().
    """

    base: Path
    wheels: Path
    folder: Path


def build(
    name: str, image: Image, locked: Lock, parts: Parts, tag: str, scratch: Path, log: Log, *, cache: bool = True
) -> Built:
    """Builds an image and tags it; the engine must have the containerd image store.

    Without `cache`, BuildKit does all of it again.
    Raises ConfigError for a Dockerfile without its marks, TandemError for what BuildKit refuses.
    """
    context = scratch / "context"
    context.mkdir()
    stage(name, image, locked, parts, context, log)
    match locked:
        case DebianLock():
            return _built(name, locked, context, tag, log, cache=cache, recompress=True)
        case CombinedLock():
            name_base(locked)
            built = _built(name, locked, context, tag, log, cache=cache, recompress=False)
            refuse_moved(locked, built)
            return built


def _built(name: str, locked: Lock, context: Path, tag: str, log: Log, *, cache: bool, recompress: bool) -> Built:
    with step(log, f"building {tag}"):
        digest = buildkit.build(
            context,
            platform=locked.platform,
            epoch=locked.epoch,
            labels=labels(name, locked),
            tag=tag,
            log=log,
            cache=cache,
            recompress=recompress,
        )
    return verified(digest, tag, locked.platform)


def verified(digest: str, tag: str, platform: str) -> Built:
    """Returns what the engine's store has for a digest. Raises TandemError unless it is the image that was built."""
    found = engine.image("local", digest)
    if found is None or found["Id"] != digest:
        raise TandemError(
            f"{tag}: buildx made {digest}, but the image store does not have it",
            hint="the engine needs the containerd image store: ./doitw host",
        )
    made = f"{found['Os']}/{found['Architecture']}"
    if made != platform:
        raise TandemError(f"{tag}: built for {made}, not for {platform}")
    layers = tuple(found["RootFS"]["Layers"])
    return Built(digest=digest, tag=tag, platform=platform, diff_ids=layers, size=found["Size"])


def base_name(locked: CombinedLock) -> str:
    """The name under which BuildKit finds the base of a combined image."""
    return f"tandem/base:{locked.base.rpartition(':')[2][:12]}"


def name_base(locked: CombinedLock) -> None:
    """Give the base of a combined image that name in the engine's store; `doit gc` takes it away.

    By NAME@digest BuildKit would ask a registry for one that was never pushed, or that came by `docker load`. Raises
    TandemError if the engine does not have it.
    """
    from docker.errors import ImageNotFound

    repository, _, tag = base_name(locked).rpartition(":")
    with engine.session() as client:
        try:
            client.images.get(locked.base).tag(repository, tag)
        except ImageNotFound as error:
            message = f"the Docker engine does not have {locked.base} any more"
            raise TandemError(message, hint="build again: it is pulled") from error


def refuse_moved(locked: CombinedLock, built: Built) -> None:
    """Raise TandemError unless the image begins with every layer of its base as it was read."""
    below = locked.reading.layers
    if not below or built.diff_ids[: len(below)] != below:
        raise TandemError(
            f"{built.tag}: it does not begin with the layers of {locked.base} as lockfiles/{locked.name} has them",
            hint=f"`TANDEM_LOCK=upgrade:base ./doitw lock:{locked.name}` reads the base anew",
        )


def dockerfile(template: Path, fillings: Mapping[str, Sequence[str]]) -> str:
    """Returns a Dockerfile with the lines that take the place of each mark.

    Raises ConfigError if the template cannot be read, or lacks a mark.
    """
    try:
        text = template.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{template}: {error.strerror}") from error
    lines: list[str] = []
    missing = dict(fillings)
    for line in text.splitlines():
        lines += missing.pop(line.strip(), [line])
    if missing:
        raise ConfigError(
            f"{'/'.join(template.parts[-3:])}: it has no line {' and no line '.join(map(repr, missing))}",
            hint="the Dockerfiles that come with Tandem show where the marks stand",
        )
    return "\n".join(lines) + "\n"


def debian_fillings(image: Image, layers: Sequence[str]) -> dict[str, list[str]]:
    """Returns the lines for each mark of the Dockerfile of an image made from Debian packages."""
    return {
        SETTINGS: [f"WORKDIR {image.workdir}", *_variables(image)],
        LAYERS: [f"ADD --link {layer}.tar /" for layer in layers],
    }


def combined_fillings(image: Image, layers: Sequence[str], base: str, launching: LauncherLayer) -> dict[str, list[str]]:
    """Returns the lines for each mark of the Dockerfile of an image on top of the image `base`."""
    return {
        BASE: [f"FROM {base}"],
        SETTINGS: [*launching.settings(), *_variables(image)],
        # Not linked: a layer that knows nothing of the base would put folders where that one has links.
        LAYERS: [f"ADD {layer}.tar /" for layer in layers],
    }


def _variables(image: Image) -> list[str]:
    return [f"ENV {key}={launcher.quote_env_value(image.env[key])}" for key in sorted(image.env)]


def labels(name: str, locked: Lock) -> dict[str, str]:
    """Returns the labels of an image: no times, no host names."""
    return {
        "org.opencontainers.image.title": name,
        **_base_labels(locked),
        "tandem.lock": "sha256:" + identity(locked),
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


def identity(locked: Lock) -> str:
    """Returns a hash over what a lock pins, as hex."""
    # Spelled out by hand: a field added later must not change the digests of images.
    text = [locked.platform, locked.python, str(locked.epoch)]
    wheels = [f"{wheel.name} {wheel.version} {wheel.sha256}" for wheel in sorted(locked.wheels)]
    match locked:
        case DebianLock():
            text += [lockfile.columns(locked.debs), *wheels]
        case CombinedLock():
            text += [lockfile.columns(()), *wheels, locked.base]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def stage(name: str, image: Image, locked: Lock, parts: Parts, context: Path, log: Log) -> None:
    """Put every archive and the finished Dockerfile into a build context. Raises as build() does."""
    layers = tuple(layer["name"] for layer in json.loads((parts.wheels / SUMMARY).read_text(encoding="utf-8")))
    fillings, below = _stage_base(name, image, locked, parts, layers, context, log)
    text = dockerfile(parts.folder / "Dockerfile", fillings)
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    scratch = context.parent
    python = partial(bytecode.extract_python, locked, scratch, log)
    own_files.write(name, image, locked, parts.folder, python, scratch, context / "own.tar", below)
    for layer in layers:
        _link(parts.wheels / f"{layer}.tar", context / f"{layer}.tar")


def _stage_base(
    name: str, image: Image, locked: Lock, parts: Parts, layers: Sequence[str], context: Path, log: Log
) -> tuple[dict[str, list[str]], Below]:
    """Put the root filesystem into the context, if there is one. Returns the Dockerfile's fillings, and what is below.

    Raises ConfigError for a base image on which no layer makes a node.
    """
    match locked:
        case DebianLock():
            tar.write(context / "workdir.tar", {}, locked.epoch, folders=[image.workdir.strip("/")])
            _link(parts.base, context / "base.tar")
            return debian_fillings(image, layers), own_files.NOTHING_BELOW
        case CombinedLock():
            launching = lay(name, image, locked, log)
            fillings = combined_fillings(image, layers, base_name(locked), launching)
            return fillings, _below(launching, layers, parts)


def _below(launching: LauncherLayer, layers: Sequence[str], parts: Parts) -> Below:
    present = base_paths.read_paths(parts.base)
    for layer in layers:
        present |= tar.names(parts.wheels / f"{layer}.tar")
    return Below(files=launching.files, links=launching.links, folders=launching.folders, present=present)


def lay(name: str, image: Image, locked: CombinedLock, log: Log) -> LauncherLayer:
    """What a launcher needs on top of the image that was read, with everything worth knowing told.

    Raises ConfigError for what no layer can make good.
    """
    launching = launcher.plan_layer(locked.reading, image.workdir, [wheel.name for wheel in locked.wheels])
    for note in launching.notes:
        announce(log, note)
    for lack in launching.lacking:
        announce(log, f"the base lacks {lack}")
    launcher.refuse_unusable_base(f"dockerfiles/{name}/image.yaml", launching)
    return launching


def _link(source: Path, target: Path) -> None:
    """Have a file at another place, without writing it again where the file system allows that."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
