"""The tasks of registry, model and clusters: for each stage its inputs, its upstream, and the claims of its result."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.config.loader import Config
from pipeline.config.models import Cluster, Serve
from pipeline.config.rules import REFERENCE_SUFFIX
from pipeline.core import results
from pipeline.core.errors import TandemError
from pipeline.core.keyed_hash import keyed_hash
from pipeline.core.sensitive import map_secret_options
from pipeline.graph.task import Claim, Inputs, Json, Outputs, Run, Task
from pipeline.host import engine
from pipeline.image.results import Built
from pipeline.lock.service_packages import LAB, REGISTRY, ServicePackages
from pipeline.tasks import claims
from pipeline.tasks.checks import EMULATION
from pipeline.tasks.images import lock_mode, result_claims
from pipeline.tasks.outputs import from_outputs, to_outputs

if TYPE_CHECKING:
    from pipeline.cluster.deploy import DeployTarget, ImageT

MODEL = "model:tiny"
PROBES = "pipeline/probes/serve_*.py"


def shared_tasks(config: Config) -> Iterator[Task]:
    """Yields the tasks that all clusters share: the registry, the model, and the locks of Tandem's services."""
    yield _debs_lock(config, REGISTRY, "the packages of the local registry")
    yield _debs_lock(config, LAB, "the packages of the lab's machines")
    yield _registry(config)
    yield _model(config)


def cluster_tasks(config: Config, name: str, cluster: Cluster) -> Iterator[Task]:
    """Yields the tasks of one cluster: a reference, if one rank can hold the model, and deploy."""
    if cluster.serve.model == "tiny":
        yield _reference(config, name, cluster)
    yield _deploy(config, name, cluster)


def _debs_lock(config: Config, wanted: ServicePackages, doc: str) -> Task:
    mode = lock_mode()

    def run(run: Run) -> Outputs:
        from pipeline.core import store

        wanted.lock(config.root, mode, run.log)
        return {"sha256": store.file_digest(config.root / wanted.path)}

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        if mode.startswith("upgrade"):
            return (claims.never(f"TANDEM_LOCK={mode}"),)
        return (claims.file(str(wanted.path), str(outputs["sha256"])),)

    return Task(
        name=f"lock:{wanted.name}",
        doc=doc,
        inputs=Inputs(
            params={"packages": list(wanted.packages), "suite": wanted.suite}, code=("pipeline.lock.service_packages",)
        ),
        run=run,
        world=world,
        commits=(str(wanted.path),),
    )


def _registry(config: Config) -> Task:
    target = config.pipeline.registry

    def run(run: Run) -> Outputs:
        from pipeline.registry import api, local

        if target.serve:
            locked = REGISTRY.read(config.root)
            served = local.start_registry(target.address, locked, run.scratch, run.log)
            return {"address": target.address, **to_outputs(served)}
        if not api.is_up(target.address):
            raise TandemError(
                f"pipeline.yaml: registry.address: no registry answers at {target.address}",
                hint="set registry.serve: true for a local one",
            )
        return {"address": target.address}

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        answers = claims.serving(target.address)
        if not outputs.get("container"):
            return (answers,)
        labels = {"tandem.image": str(outputs["image"])}
        return (claims.container("local", str(outputs["container"]), labels), answers)

    return Task(
        name="registry",
        doc=f"Make sure that a registry answers at {target.address}.",
        inputs=Inputs(
            params={"address": target.address, "serve": target.serve},
            code=("pipeline.registry.local",),
        ),
        needs=("lock:registry",),
        run=run,
        world=world,
    )


def _model(config: Config) -> Task:
    def run(run: Run) -> Outputs:
        from pipeline.cluster import tiny_model

        files = tiny_model.write_model(run.scratch / "tiny")
        results.keep(run.scratch / "tiny", _tiny(config, files), files)
        return {"files": dict(files)}

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        files = outputs["files"]
        assert isinstance(files, dict)
        return result_claims(config, _tiny(config, files), {name: str(digest) for name, digest in files.items()})

    return Task(
        name=MODEL,
        doc="a tiny Qwen3-MoE model from a seed",
        inputs=Inputs(code=("pipeline.cluster.tiny_model",)),
        run=run,
        world=world,
    )


def _reference(config: Config, name: str, cluster: Cluster) -> Task:
    build = f"build:{cluster.image}"

    def run(run: Run) -> Outputs:
        from pipeline.cluster import deploy

        built = from_outputs(run.upstream[build], Built)
        target = _target(config, name, built, run)
        completion = deploy.complete_on_one_rank(target, _logs(config, name + REFERENCE_SUFFIX), run.log)
        return {"answer": to_outputs(completion)}

    return Task(
        name=f"reference:{name}",
        doc=f"what one rank of {cluster.image} answers",
        inputs=Inputs(
            files=(PROBES, EMULATION),
            # It listens at a port of its own.
            params={
                "serve": {key: value for key, value in _hidden(cluster.serve).items() if key != "port"},
                "accelerators": cluster.accelerators,
            },
            tools=(_emulator(config, cluster),),
            code=("pipeline.cluster.deploy", "pipeline.image.results:Built"),
        ),
        needs=(build, MODEL),
        run=run,
        world=lambda _: (),
    )


def _deploy(config: Config, name: str, cluster: Cluster) -> Task:
    push, reference = f"push:{cluster.image}", f"reference:{name}"
    tiny = cluster.serve.model == "tiny"

    def run(run: Run) -> Outputs:
        from pipeline.cluster import deploy
        from pipeline.cluster.deploy import PushedImage
        from pipeline.cluster.service_api import Completion

        for node in cluster.nodes:
            engine.api_address(node.endpoint)  # refused before anything is done
        target = _target(config, name, from_outputs(run.upstream[push], PushedImage), run)
        wanted = msgspec.convert(run.upstream[reference]["answer"], Completion) if tiny else None
        return to_outputs(deploy.deploy(target, wanted, _logs(config, name), run.log))

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        nodes: Any = outputs["nodes"]
        running = [claims.container(node["endpoint"], node["container"], node["labels"]) for node in nodes]
        return (*running, claims.health("127.0.0.1", cluster.serve.port))

    return Task(
        name=f"deploy:{name}",
        doc=f"{len(cluster.nodes)} nodes serve {cluster.serve.name} from {cluster.image}",
        inputs=Inputs(
            files=(PROBES, EMULATION),
            params={"cluster": {**to_outputs(cluster), "serve": _hidden(cluster.serve)}},
            tools=(_emulator(config, cluster),),
            code=("pipeline.cluster.deploy",),
        ),
        needs=(push, *((MODEL, reference) if tiny else ())),
        run=run,
        world=world,
        summary=lambda outputs: f"serves {outputs['model']} at {outputs['endpoint']}",
    )


def _emulator(config: Config, cluster: Cluster) -> str:
    return f"emulator {config.images[cluster.image].platform}"


def _target(config: Config, name: str, image: "ImageT", run: Run) -> "DeployTarget[ImageT]":
    """Return what to start on a cluster: an image, and the model if Tandem makes it."""
    from pipeline.cluster.deploy import DeployTarget

    cluster = config.pipeline.clusters[name]
    model = _tiny(config, run.upstream[MODEL]["files"]) if MODEL in run.upstream else None
    platform = config.images[cluster.image].platform
    return DeployTarget(name=name, cluster=cluster, image=image, platform=platform, model=model)


def _tiny(config: Config, files: Any) -> Path:
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return config.root / "artifacts" / "models" / f"tiny-{digest}"


def _logs(config: Config, name: str) -> Path:
    return config.root / "artifacts" / "nodes" / name


def _hidden(serve: Serve) -> dict[str, Json]:
    """Return what is served, with a hash in place of each secret: inputs are shown, and must show a change.

    No name in serve.env need say what its value is, so all of them count as secrets.
    """
    env: dict[str, Json] = {name: keyed_hash(name, value) for name, value in serve.env.items()}
    return {**to_outputs(serve), "env": env, "args": list(map_secret_options(serve.args, keyed_hash))}
