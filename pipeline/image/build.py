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
from typing import Any

from pipeline.config.models import Image
from pipeline.core import tar
from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import Log, announce, step
from pipeline.foreign import launcher_layer as launcher
from pipeline.foreign.facts import ImageFacts
from pipeline.foreign.launcher_layer import LauncherLayer
from pipeline.host import buildkit, engine
from pipeline.image import base_paths, own_files
from pipeline.image.interpreter import interpreter
from pipeline.image.wheels import SUMMARY
from pipeline.lock import lockfile
from pipeline.lock.lockfile import Lock

BASE, LAYERS, SETTINGS = "#: base", "#: layers", "#: settings"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an image is put together from: the rootfs tar, the folder of wheels.make(), and dockerfiles/<image>.

    On another image `base` is the list of that one's paths, of underlay.make().
    """

    base: Path
    wheels: Path
    folder: Path


def make(
    name: str, image: Image, locked: Lock, parts: Parts, tag: str, scratch: Path, log: Log, *, cache: bool = True
) -> dict[str, Any]:
    """Build an image and tag it; the engine must have the containerd image store.

    Returns `digest` (of the manifest: the image's ID in that store), `tag`, `platform`, `diff_ids` (of the layers
    uncompressed, in order) and `size` in bytes. With `cache` off, BuildKit does all of it anew.
    Raises ConfigError for a Dockerfile without its marks, TandemError for what BuildKit refuses.
    """
    context = scratch / "context"
    context.mkdir()
    stage(name, image, locked, parts, context, log)
    if locked.reading is not None:
        name_base(locked)
    with step(log, f"building {tag}"):
        digest = buildkit.build(
            context,
            platform=locked.platform,
            epoch=locked.epoch,
            labels=labels(name, locked),
            tag=tag,
            log=log,
            cache=cache,
            recompress=locked.reading is None,
        )
    made = verified(digest, tag, locked.platform)
    if locked.reading is not None:
        refuse_moved(locked, locked.reading, made)
    return made


def verified(digest: str, tag: str, platform: str) -> dict[str, Any]:
    """What the engine's store holds under a digest. Raises TandemError unless it is the image that was built."""
    found = engine.image("local", digest)
    if found is None or found["Id"] != digest:
        raise TandemError(
            f"{tag}: buildx made {digest}, but the image store does not have it",
            hint="the engine needs the containerd image store: ./doitw host",
        )
    made = f"{found['Os']}/{found['Architecture']}"
    if made != platform:
        raise TandemError(f"{tag}: built for {made}, not for {platform}")
    return {
        "digest": digest,
        "tag": tag,
        "platform": platform,
        "diff_ids": found["RootFS"]["Layers"],
        "size": found["Size"],
    }


def base_name(locked: Lock) -> str:
    """The name under which BuildKit finds the base of a combined image."""
    return f"tandem/base:{locked.base.rpartition(':')[2][:12]}"


def name_base(locked: Lock) -> None:
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


def refuse_moved(locked: Lock, reading: ImageFacts, made: Mapping[str, Any]) -> None:
    """Raise TandemError unless the image begins with every layer of its base as it was read."""
    below = list(reading.layers)
    if not below or made["diff_ids"][: len(below)] != below:
        raise TandemError(
            f"{made['tag']}: it does not begin with the layers of {locked.base} as lockfiles/{locked.name} has them",
            hint=f"`TANDEM_LOCK=upgrade:base ./doitw lock:{locked.name}` reads the base anew",
        )


def dockerfile(
    template: Path, image: Image, layers: Sequence[str], base: str = "", launching: LauncherLayer | None = None
) -> str:
    """The image's Dockerfile with its marks filled in.

    They are the layers of wheels; environment and working folder; and on another image that image.
    """
    try:
        text = template.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{template}: {error.strerror}") from error
    env = [f"ENV {key}={launcher.quote_env_value(image.env[key])}" for key in sorted(image.env)]
    if launching is None:
        fillings = {
            SETTINGS: [f"WORKDIR {image.workdir}", *env],
            LAYERS: [f"ADD --link {layer}.tar /" for layer in layers],
        }
    else:
        # Not linked: a layer that knows nothing of the base would put folders where that one has links.
        fillings = {
            BASE: [f"FROM {base}"],
            SETTINGS: [*launching.settings(), *env],
            LAYERS: [f"ADD {layer}.tar /" for layer in layers],
        }
    lines: list[str] = []
    for line in text.splitlines():
        lines += fillings.pop(line.strip(), [line])
    if fillings:
        raise ConfigError(
            f"{'/'.join(template.parts[-3:])}: it has no line {' and no line '.join(map(repr, fillings))}",
            hint="the Dockerfiles that come with Tandem show where the marks stand",
        )
    return "\n".join(lines) + "\n"


def labels(name: str, locked: Lock) -> dict[str, str]:
    """What the image says of itself: no times, no host names."""
    base, _, digest = locked.base.partition("@")
    return {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.base.name": base or f"debian:{locked.suite}",
        **({"org.opencontainers.image.base.digest": digest} if digest else {}),
        "tandem.lock": "sha256:" + identity(locked),
        "tandem.python": locked.python,
    }


def identity(locked: Lock) -> str:
    """A hash over what a lock pins, as hex."""
    # Spelled out by hand: a field added later must not change the digests of images.
    text = [locked.platform, locked.python, str(locked.epoch), lockfile.columns(locked.debs)]
    text += [f"{wheel.name} {wheel.version} {wheel.sha256}" for wheel in sorted(locked.wheels)]
    text += [locked.base] if locked.base else []
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def stage(name: str, image: Image, locked: Lock, parts: Parts, context: Path, log: Log) -> None:
    """Put every archive and the finished Dockerfile into a build context. Raises as make() does."""
    layers = tuple(layer["name"] for layer in json.loads((parts.wheels / SUMMARY).read_text(encoding="utf-8")))
    launching, present = None, tar.NOTHING
    if locked.reading is not None:
        launching, present = lay(name, image, locked, locked.reading, log), base_paths.read(parts.base)
        for layer in layers:
            present |= tar.names(parts.wheels / f"{layer}.tar")
    text = dockerfile(parts.folder / "Dockerfile", image, layers, base_name(locked), launching)
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    scratch = context.parent
    python = partial(interpreter, locked, scratch, log)
    own_files.write(name, image, locked, parts.folder, python, scratch, context / "own.tar", launching, present)
    for layer in layers:
        _link(parts.wheels / f"{layer}.tar", context / f"{layer}.tar")
    if launching is None:
        tar.write(context / "workdir.tar", {}, locked.epoch, folders=[image.workdir.strip("/")])
        _link(parts.base, context / "base.tar")


def lay(name: str, image: Image, locked: Lock, reading: ImageFacts, log: Log) -> LauncherLayer:
    """What a launcher needs on top of the image that was read, with everything worth knowing told.

    Raises ConfigError for what no layer can make good.
    """
    launching = launcher.plan_layer(reading, image.workdir, [wheel.name for wheel in locked.wheels])
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
