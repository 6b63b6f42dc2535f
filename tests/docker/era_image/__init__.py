"""A small native image that forms a Ray cluster and keeps what launchers ask of one, made by the project's own stages.

Ray in it is real; vLLM is its parser only. The lock lies beside; `TANDEM_LOCK=` in the environment has it made anew.
What is made once stays in the engine (`tandem-test-eras:KEY`, KEY after everything that decides it).
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from docker.errors import ImageNotFound

from pipeline.config import loader
from pipeline.config.models import DebianImage
from pipeline.core.log import Log
from pipeline.host import engine
from pipeline.image import base, build, wheels
from pipeline.image.build import Parts
from pipeline.lock import lock
from pipeline.lock.contents import DebianLock
from tests import stored

HERE = Path(__file__).parent
NAME = "era-ray"
FOLDER = HERE / "dockerfiles" / NAME
REPOSITORY = "tandem-test-eras"


def image() -> DebianImage:
    """What its image.yaml says."""
    return msgspec.convert(loader.read_yaml(FOLDER / "image.yaml", HERE).value, DebianImage)


def key() -> str:
    """After everything that decides the image, but for the project's stages."""
    hashed = hashlib.sha256()
    places = [*FOLDER.rglob("*"), *(FOLDER / "files").resolve().rglob("*"), *(HERE / "lockfiles").glob("*")]
    for file in sorted(file for file in places if file.is_file() and "__pycache__" not in file.parts):
        hashed.update(f"{file.name} {file.stat().st_mode & 0o111}\n".encode() + file.read_bytes())
    return hashed.hexdigest()[:12]


def made(log: Log) -> str:
    """The digest of the image in the local engine, made unless it is there."""
    locked = lock.lock_image(NAME, image(), HERE, os.environ.get("TANDEM_LOCK", "frozen"), log)
    assert isinstance(locked, DebianLock)
    tag = f"{REPOSITORY}:{key()}"
    if description := engine.find_image("local", tag):
        return str(description["Id"])
    with tempfile.TemporaryDirectory(prefix="tandem-eras-") as folder:
        scratch = Path(folder)
        base.make_root_filesystem(locked, scratch, log)
        wheels.make_layers(locked, scratch / "wheels", log)
        parts = Parts(base=scratch / "rootfs.tar", wheels=scratch / "wheels", folder=FOLDER)
        digest = str(build.build(NAME, image(), locked, parts, tag, scratch, log).digest)
    for name in set(stored.names(engine.client(), f"{REPOSITORY}:")) - {tag}:
        with suppress(ImageNotFound):  # another worker made it too
            engine.client().images.remove(name)
    return digest
