"""The tasks of an image: for each stage its inputs, its upstream, and the claims of its result."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from pipeline.config.loader import Config
from pipeline.config.models import CombinedImage, DebianImage, Image
from pipeline.core import results
from pipeline.graph.task import Claim, Inputs, Json, Outputs, Run, Task
from pipeline.host import engine
from pipeline.image.results import Base, Built, PulledImage, RootFilesystem, Wheels
from pipeline.lock.request import FILES, FILES_ON_IMAGE, file_paths, request_of
from pipeline.tasks import checks, claims
from pipeline.tasks.outputs import from_outputs, to_outputs

COMPILER = "pipeline/probes/bytecode.py"
NODE_SCRIPT = "dockerfiles/cpu/files/workspace/vllm/run-cluster-node.sh"


def image_tasks(config: Config, name: str, image: Image) -> Iterator[Task]:
    """Yields lock, base, wheels, build, smoke and push of one image. A stage is imported when it runs, not before."""
    match image:
        case DebianImage():
            yield _lock(config, name, image, FILES)
            yield _root_filesystem(config, name)
            yield _wheels(config, name)
            yield _build(config, name, image)
        case CombinedImage():
            yield _lock(config, name, image, FILES_ON_IMAGE)
            yield _base_image(config, name)
            yield _added_wheels(config, name)
            yield _build(config, name, image, NODE_SCRIPT)
    yield checks.smoke_task(config, name, image)
    yield _push(config, name, image)
    if image.smoke.launcher:
        yield checks.launcher_task(config, name, image)


def lock_mode() -> str:
    """Returns the value of TANDEM_LOCK; "frozen" if it is not set and CI is."""
    return os.environ.get("TANDEM_LOCK", "frozen" if os.environ.get("CI") else "")


def _lock(config: Config, name: str, image: Image, files: Mapping[str, str]) -> Task:
    mode = lock_mode()
    paths = tuple(file_paths(name, files).values())

    def run(run: Run) -> Outputs:
        from pipeline.core import store
        from pipeline.lock import lock

        locked = lock.lock_image(name, image, config.root, mode, run.log)
        return {"files": {path: store.file_digest(config.root / path) for path in paths}, "epoch": locked.epoch}

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        if mode.startswith("upgrade"):
            return (claims.never(f"TANDEM_LOCK={mode}"),)
        return _files(outputs["files"])

    return Task(
        name=f"lock:{name}",
        doc=f"what {name} asks for, as versions and hashes",
        inputs=Inputs(
            # Aliases are not resolved, but must name a distribution that is.
            params={"request": request_of(image), "aliases": [[alias.name, alias.of] for alias in image.aliases]},
            code=("pipeline.lock.lock",),
        ),
        run=run,
        world=world,
        commits=paths,
    )


def _root_filesystem(config: Config, name: str) -> Task:
    def run(run: Run) -> Outputs:
        from pipeline.image import base
        from pipeline.lock import lockfile
        from pipeline.lock.contents import DebianLock

        locked = lockfile.read_lock_of(DebianLock, name, config.root)
        result = base.make_root_filesystem(locked, run.scratch, run.log)
        results.keep(run.scratch / "rootfs.tar", _base_file(config, result), _base_hashes(result))
        return to_outputs(result)

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        result = from_outputs(outputs, RootFilesystem)
        return result_claims(config, _base_file(config, result), _base_hashes(result))

    return Task(
        name=f"base:{name}",
        doc=f"the root filesystem of {name}, from its locked Debian packages",
        inputs=Inputs(files=(COMPILER,), code=("pipeline.image.base", "pipeline.lock.lockfile:read_lock_of")),
        needs=(f"lock:{name}",),
        run=run,
        world=world,
        lazy=True,
        shared=True,
    )


def _base_image(config: Config, name: str) -> Task:
    def run(run: Run) -> Outputs:
        from pipeline.image import base_paths
        from pipeline.lock import lockfile
        from pipeline.lock.contents import CombinedLock

        locked = lockfile.read_lock_of(CombinedLock, name, config.root)
        result = base_paths.pull_base(locked, config.root, run.scratch, run.log)
        results.keep(run.scratch / base_paths.LIST, _base_file(config, result), _base_hashes(result))
        return to_outputs(result)

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        result = from_outputs(outputs, PulledImage)
        listed = result_claims(config, _base_file(config, result), _base_hashes(result))
        return (*listed, claims.image(result.digest))

    return Task(
        name=f"base:{name}",
        doc=f"the image below {name}, by digest",
        inputs=Inputs(code=("pipeline.image.base_paths", "pipeline.lock.lockfile:read_lock_of")),
        needs=(f"lock:{name}",),
        run=run,
        world=world,
        lazy=True,
    )


def _wheels(config: Config, name: str) -> Task:
    def run(run: Run) -> Outputs:
        from pipeline.image import wheels
        from pipeline.lock import lockfile

        result = wheels.make_layers(lockfile.read_lock(name, config.root), run.scratch / "layers", run.log)
        results.keep(run.scratch / "layers", _layers_folder(config, result), _layer_hashes(result))
        return to_outputs(result)

    inputs = Inputs(files=(COMPILER,), tools=("uv",), code=("pipeline.image.wheels",))
    return _wheels_task(config, name, inputs, (f"lock:{name}",), run)


def _added_wheels(config: Config, name: str) -> Task:
    """Return the task of the wheels on top of another image; they replace none of its files."""
    below = f"base:{name}"

    def run(run: Run) -> Outputs:
        from pipeline.image import base_paths, wheels
        from pipeline.lock import lockfile

        base = from_outputs(run.upstream[below], PulledImage)
        present = base_paths.read_paths(_base_file(config, base))
        result = wheels.make_layers(lockfile.read_lock(name, config.root), run.scratch / "layers", run.log, present)
        results.keep(run.scratch / "layers", _layers_folder(config, result), _layer_hashes(result))
        return to_outputs(result)

    code = ("pipeline.image.wheels", "pipeline.image.base_paths:read_paths")
    inputs = Inputs(files=(COMPILER,), tools=("uv",), code=code)
    return _wheels_task(config, name, inputs, (f"lock:{name}", below), run)


def _wheels_task(
    config: Config, name: str, inputs: Inputs, needs: tuple[str, ...], run: Callable[[Run], Outputs]
) -> Task:
    def world(outputs: Outputs) -> tuple[Claim, ...]:
        result = from_outputs(outputs, Wheels)
        return result_claims(config, _layers_folder(config, result), _layer_hashes(result))

    return Task(
        name=f"wheels:{name}",
        doc=f"the Python packages of {name}, installed for its platform",
        inputs=inputs,
        needs=needs,
        run=run,
        world=world,
        lazy=True,
        shared=True,
    )


def _build(config: Config, name: str, image: Image, *files: str) -> Task:
    """Return the task that builds an image; `files` are further files that it reads."""
    folder = f"dockerfiles/{name}"

    def run(run: Run) -> Outputs:
        from pipeline.image import build
        from pipeline.lock import lockfile

        parts = build.Parts(
            base=_base_file(config, _base_result(image, run.upstream[f"base:{name}"])),
            wheels=_layers_folder(config, from_outputs(run.upstream[f"wheels:{name}"], Wheels)),
            folder=config.root / folder,
        )
        # Another checkout may be building an image of that name.
        new = f"tandem/{name}:new-{hashlib.sha256(str(config.root).encode()).hexdigest()[:8]}"
        built = build.build(name, image, lockfile.read_lock(name, config.root), parts, new, run.scratch, run.log)
        # Named after its bytes, not its inputs: an image that is built again to the same bytes is the same result.
        tag = f"tandem/{name}:{built.digest.removeprefix('sha256:')[:12]}"
        engine.rename_image(built.digest, new, tag)
        return to_outputs(replace(built, tag=tag))

    return Task(
        name=f"build:{name}",
        doc=f"the image {name}, one digest",
        inputs=Inputs(
            files=(
                COMPILER,
                f"{folder}/Dockerfile",
                *(f"{folder}/{below}/**" for below in _folders(image)),
                *files,
            ),
            params={
                "platform": image.platform,
                "env": dict(image.env),
                "workdir": image.workdir,
                "aliases": [[alias.name, alias.version, alias.of] for alias in image.aliases],
                "distributions": list(image.distributions),
            },
            tools=("engine", "buildx"),
            code=("pipeline.image.build",),
        ),
        needs=(f"lock:{name}", f"base:{name}", f"wheels:{name}"),
        run=run,
        world=lambda outputs: (claims.image(from_outputs(outputs, Built).digest),),
        restore=_restored(config, name, image),
        shared=True,
    )


def _push(config: Config, name: str, image: Image) -> Task:
    target = config.pipeline.registry
    repository = f"{target.repository}/{name}"

    def run(run: Run) -> Outputs:
        from pipeline.lock import lockfile
        from pipeline.registry import push
        from pipeline.registry.push import SmokedImage

        digest = str(run.upstream[f"smoke:{name}"]["digest"])
        tag = lockfile.read_lock(name, config.root).cutoff
        return to_outputs(push.push(SmokedImage(digest, image.platform), target.address, repository, tag, run.log))

    def world(outputs: Outputs) -> tuple[Claim, ...]:
        digest = str(outputs["digest"])
        return tuple(claims.manifest(target.address, repository, ref, digest) for ref in (digest, str(outputs["tag"])))

    return Task(
        name=f"push:{name}",
        doc=f"{name} in the registry, by digest",
        inputs=Inputs(
            params={"address": target.address, "repository": repository},
            code=("pipeline.registry.push", "pipeline.lock.lockfile:read_lock"),
        ),
        needs=(f"lock:{name}", f"smoke:{name}"),
        after=("registry",),
        run=run,
        world=world,
    )


def _restored(config: Config, name: str, image: Image) -> Callable[[Run, Outputs], None]:
    """Return what restores an image that was pruned from the engine's store: a pull, if it was ever pushed."""

    def restore(run: Run, outputs: Outputs) -> None:
        from pipeline.registry import push

        target = config.pipeline.registry
        built = from_outputs(outputs, Built)
        repository = f"{target.repository}/{name}"
        push.pull_image(built.digest, image.platform, target.address, repository, built.tag, run.log)

    return restore


def _folders(image: Image) -> tuple[str, ...]:
    return (*((image.files,) if image.files else ()), *image.distributions)


def _files(files: Json) -> tuple[Claim, ...]:
    assert isinstance(files, dict)
    return tuple(claims.file(path, str(digest)) for path, digest in files.items())


def result_claims(config: Config, place: Path, files: Mapping[str, str]) -> tuple[Claim, ...]:
    """Returns the claims of a result that results.keep() put at `place`: one for each of its files."""
    below = place.relative_to(config.root).as_posix()
    return tuple(claims.file(f"{below}/{name}" if name else below, digest) for name, digest in files.items())


def _base_result(image: Image, outputs: Mapping[str, Json]) -> Base:
    match image:
        case DebianImage():
            return from_outputs(outputs, RootFilesystem)
        case CombinedImage():
            return from_outputs(outputs, PulledImage)


def _base_file(config: Config, base: Base) -> Path:
    folder = config.root / "artifacts" / "base"
    match base:
        case RootFilesystem():
            return folder / f"{base.sha256}.tar"
        case PulledImage():
            return folder / f"{base.sha256}.paths.gz"


def _base_hashes(base: Base) -> dict[str, str]:
    return {results.WHOLE_FILE: base.sha256}


def _layers_folder(config: Config, wheels: Wheels) -> Path:
    return config.root / "artifacts" / "wheels" / wheels.digest.removeprefix("sha256:")


def _layer_hashes(wheels: Wheels) -> dict[str, str]:
    """Returns the layers of wheels and the list of them, by file name; the digest of all is the list's own."""
    layers = {f"{layer}.tar": sha256 for layer, sha256 in wheels.layers.items()}
    return {"layers.json": wheels.digest.removeprefix("sha256:"), **layers}
