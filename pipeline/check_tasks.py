"""The tasks that prove an image: smoke in containers of its platform, and the launcher's eras on the lab."""

import json
from pathlib import Path

from pipeline import claims
from pipeline.config import Config
from pipeline.graph.task import Inputs, Json, Outputs, Run, Task
from pipeline.models import Image

PROBES = ("pipeline/probes/python_facts.py", "pipeline/probes/launcher_facts.sh")
EMULATION = "pipeline/probes/emulation/**"


def smoke(config: Config, name: str, image: Image) -> Task:
    """What image.yaml promises of the image, in containers of its platform."""
    folder = f"dockerfiles/{name}"
    asked = image.smoke

    def run(run: Run) -> Outputs:
        from pipeline import lockfile
        from pipeline import smoke as stage

        locked = lockfile.read(name, config.root)
        digest = str(run.upstream[f"build:{name}"]["digest"])
        report = config.root / "artifacts" / "smoke" / f"{name}.json"
        try:
            smoked = stage.run(digest, name, image, locked.versions, config.root / folder, run.log, locked.inside)
        except stage.SmokeError as error:
            _write_json(report, error.report)
            raise
        _write_json(report, smoked.report)
        return {"digest": digest, "report": smoked.report}

    return Task(
        name=f"smoke:{name}",
        doc=f"what {name} promises, checked in containers of its platform",
        inputs=Inputs(
            files=(*([f"{folder}/{asked.config}/**"] if asked.config else []), *PROBES, EMULATION),
            params={
                "imports": list(asked.imports),
                "architectures": list(asked.architectures),
                "config": asked.config,
                "ray": asked.ray,
                "launcher": asked.launcher,
                "without": list(asked.without),
                "workdir": image.workdir,
                "aliases": [[alias.name, alias.version] for alias in image.aliases],
                "distributions": list(image.distributions),
            },
            tools=(f"emulator {image.platform}",),
            code=("pipeline.smoke",),
        ),
        needs=(f"lock:{name}", f"build:{name}"),
        run=run,
        # A verdict on bytes that are gone is no use to anybody: what follows needs the image.
        world=lambda outputs: (claims.image(str(outputs["digest"])),),
    )


def launcher(config: Config, name: str, image: Image) -> Task:
    """The pushed image on the lab's two machines, as launchers of every era drive it."""
    target = config.pipeline.registry
    repository = f"{target.repository}/{name}"

    def run(run: Run) -> Outputs:
        from pipeline import launcher as stage
        from pipeline.smoke import SmokeError

        pushed = run.upstream[f"push:{name}"]
        digest = str(pushed["digest"])
        report = config.root / "artifacts" / "smoke" / f"{name}.launcher.json"
        try:
            smoked = stage.run(config.root, digest, name, image, target.address, repository, run.log)
        except SmokeError as error:
            _write_json(report, error.report)
            raise
        _write_json(report, smoked.report)
        return {"digest": digest, "report": smoked.report}

    return Task(
        name=f"smoke:{name}:launcher",
        doc=f"{name} on the lab's two machines, as launch-cluster.sh of every era drives it",
        inputs=Inputs(
            files=(EMULATION,),
            params={"workdir": image.workdir},
            tools=(f"emulator {image.platform}",),
            code=("pipeline.launcher",),
        ),
        needs=(f"push:{name}",),
        run=run,
        world=lambda outputs: (claims.manifest(target.address, repository, *(str(outputs["digest"]),) * 2),),
    )


def _write_json(file: Path, value: Json) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
