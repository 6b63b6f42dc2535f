"""The dodo.py of a toy project that makes, shares, pushes and runs a real image, for whole runs of doit.

lock:x → base:x → build:x → smoke:x → push:x → deploy:x. TOY_NAME names image, repository and container, TOY_REGISTRY
the registry, TOY_RUNNER an image whose program goes on running; TOY_RECORDS is registry.records of pipeline.yaml.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.graph.graph import Graph
from pipeline.graph.run.doit_adapter import errors_for_doit, to_doit
from pipeline.graph.task import Claim, Inputs, Json, Outputs, Run, Task
from pipeline.host import engine
from pipeline.registry import push, records
from pipeline.registry.push import SmokedImage
from pipeline.tasks import claims

ROOT = Path(__file__).parent
GRAPH = Graph(ROOT)
NAME = os.environ["TOY_NAME"]
REGISTRY = os.environ["TOY_REGISTRY"]
REPOSITORY = f"tandem/{NAME}"
RUNNER = os.environ.get("TOY_RUNNER", "")
RECORDS = os.environ.get("TOY_RECORDS", "off")
PLATFORM = "linux/arm64"
Tasks = Iterator[dict[str, Any]]
claims.register(GRAPH.world)


def note(text: str) -> None:
    """Say to the test what really happened."""
    with (ROOT / "happened.txt").open("a") as file:
        file.write(text + "\n")


def lock(_run: Run) -> Outputs:
    """The text that everything follows from."""
    note("run lock")
    return {"text": (ROOT / "in.txt").read_text()}


def base(run: Run) -> Outputs:
    """The text in a file that only the build reads."""
    note("run base")
    # With its name, for an image of the same text may belong to somebody else.
    text = f"{NAME} {run.upstream['lock:x']['text']}".upper()
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    place = ROOT / "artifacts" / "base" / f"{sha256}.txt"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return {"sha256": sha256}


def build(run: Run) -> Outputs:
    """An image of that file, the same bytes each time."""
    note("run build")
    text = (ROOT / "artifacts" / "base" / f"{run.upstream['base:x']['sha256']}.txt").read_text()
    archive, digest = image(text)
    tag = f"{REPOSITORY}:{digest.removeprefix('sha256:')[:12]}"
    engine.client().images.load(archive)
    engine.rename_image(digest, f"{REPOSITORY}:loaded", tag)
    return {"digest": digest, "tag": tag}


def restore(run: Run, outputs: Outputs) -> None:
    """Take the image from the registry."""
    note("restore build")
    push.pull_image(str(outputs["digest"]), PLATFORM, REGISTRY, REPOSITORY, str(outputs["tag"]), run.log)


def smoke(run: Run) -> Outputs:
    """A verdict."""
    note("run smoke")
    return {"digest": run.upstream["build:x"]["digest"]}


def pushed(run: Run) -> Outputs:
    """The image in the registry."""
    note("run push")
    digest = str(run.upstream["smoke:x"]["digest"])
    push.push(SmokedImage(digest, PLATFORM), REGISTRY, REPOSITORY, "1", run.log)
    return {"digest": digest}


def deploy(run: Run) -> Outputs:
    """A container that is labelled with the image that it stands for."""
    note("run deploy")
    client = engine.client()
    for old in client.containers.list(all=True, filters={"name": f"^{NAME}$"}, ignore_removed=True):
        old.remove(force=True, v=True)
    digest = str(run.upstream["push:x"]["digest"])
    client.containers.run(RUNNER, name=NAME, detach=True, labels={"tandem.toy": digest}, network_mode="none")
    return {"digest": digest}


def image(text: str) -> tuple[bytes, str]:
    """An OCI layout with an image of one small file, and its digest."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        member = tarfile.TarInfo("text")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text.encode()))
    blobs: dict[str, bytes] = {}
    kind = "application/vnd.oci.image"
    diff = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    config = {"architecture": "arm64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": blob(blobs, json.dumps(config).encode(), f"{kind}.config.v1+json"),
        "layers": [blob(blobs, layer.getvalue(), f"{kind}.layer.v1.tar")],
    }
    top = blob(blobs, json.dumps(manifest).encode(), f"{kind}.manifest.v1+json")
    top["annotations"] = {"io.containerd.image.name": f"docker.io/{REPOSITORY}:loaded"}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [top]}).encode()
    files |= {f"blobs/sha256/{name}": content for name, content in blobs.items()}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue(), str(top["digest"])


def blob(blobs: dict[str, bytes], content: bytes, kind: str) -> dict[str, Json]:
    """Keep a blob; returns its descriptor."""
    name = hashlib.sha256(content).hexdigest()
    blobs[name] = content
    return {"mediaType": kind, "digest": f"sha256:{name}", "size": len(content)}


def in_store(outputs: Outputs) -> tuple[Claim, ...]:
    """The image is in the engine's store."""
    return (claims.image(str(outputs["digest"])),)


def in_registry(outputs: Outputs) -> tuple[Claim, ...]:
    """The registry has the image under digest and tag."""
    digest = str(outputs["digest"])
    return tuple(claims.manifest(REGISTRY, REPOSITORY, reference, digest) for reference in (digest, "1"))


def file(outputs: Outputs) -> tuple[Claim, ...]:
    """The base's file is there."""
    return (claims.file(f"artifacts/base/{outputs['sha256']}.txt", str(outputs["sha256"])),)


def running(outputs: Outputs) -> tuple[Claim, ...]:
    """The container runs."""
    return (claims.container("local", NAME, {"tandem.toy": str(outputs["digest"])}),)


with errors_for_doit():
    if RECORDS != "off":
        GRAPH.share = records.RecordStore(REGISTRY, "tandem/records", may_write=RECORDS == "push")
    GRAPH.add(
        Task(name="lock:x", doc="", inputs=Inputs(files=("in.txt",)), run=lock, world=lambda _: ()),
        Task(
            name="base:x", doc="", inputs=Inputs(params={"name": NAME}), needs=("lock:x",), run=base, world=file,
            lazy=True, shared=True,
        ),
        Task(
            name="build:x", doc="", inputs=Inputs(), needs=("base:x",), run=build, world=in_store, restore=restore,
            shared=True,
        ),
        Task(name="smoke:x", doc="", inputs=Inputs(), needs=("build:x",), run=smoke, world=in_store),
        Task(name="push:x", doc="", inputs=Inputs(), needs=("smoke:x",), run=pushed, world=in_registry),
        Task(name="deploy:x", doc="", inputs=Inputs(), needs=("push:x",), run=deploy, world=running),
    )  # fmt: skip


def task_lock() -> Tasks:
    """Give doit the task lock:x."""
    yield from to_doit(GRAPH, "lock")


def task_base() -> Tasks:
    """Give doit the task base:x."""
    yield from to_doit(GRAPH, "base")


def task_build() -> Tasks:
    """Give doit the task build:x."""
    yield from to_doit(GRAPH, "build")


def task_smoke() -> Tasks:
    """Give doit the task smoke:x."""
    yield from to_doit(GRAPH, "smoke")


def task_push() -> Tasks:
    """Give doit the task push:x."""
    yield from to_doit(GRAPH, "push")


def task_deploy() -> Tasks:
    """Give doit the task deploy:x."""
    yield from to_doit(GRAPH, "deploy")
