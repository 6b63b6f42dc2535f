"""The tasks that prove an image: smoke in containers of its platform, and the launcher's eras on the lab."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.config.loader import Config
from pipeline.config.models import Image
from pipeline.core import redact
from pipeline.graph.task import Inputs, Json, Outputs, Run, Task
from pipeline.lock.service_packages import LAB
from pipeline.tasks import claims
from pipeline.tasks.outputs import to_outputs

PROBES = (
    "pipeline/probes/python_facts.py", "pipeline/probes/launcher_facts.sh", "pipeline/probes/entrypoint_report.sh",
)  # fmt: skip
# Not the image store of the machines: that of a lab that is up is known by looking only, which fingerprints do not.
ON_MACHINES = ("pipeline/probes/machine_facts.py", "pipeline/probes/lab/**")
EMULATION = "pipeline/probes/emulation/**"


def smoke(config: Config, name: str, image: Image) -> Task:
    """What image.yaml promises of the image, in containers of its platform."""
    folder = f"dockerfiles/{name}"
    asked = image.smoke

    def run(run: Run) -> Outputs:
        from pipeline.lock import lockfile
        from pipeline.smoke import smoke as stage

        locked = lockfile.read_lock(name, config.root)
        digest = str(run.upstream[f"build:{name}"]["digest"])
        with _reported(config, name) as report:
            smoked = stage.smoke(digest, name, image, locked.versions, config.root / folder, run.log, locked.inside)
            report.update(smoked.report)
        return {"digest": digest, "report": report}

    return Task(
        name=f"smoke:{name}",
        doc=f"what {name} promises, checked in containers of its platform",
        inputs=Inputs(
            files=(*([f"{folder}/{asked.config}/**"] if asked.config else []), *PROBES, EMULATION),
            params={
                **to_outputs(asked),
                "workdir": image.workdir,
                "aliases": [[alias.name, alias.version] for alias in image.aliases],
                "distributions": list(image.distributions),
            },
            tools=(f"emulator {image.platform}",),
            code=("pipeline.smoke.smoke", "pipeline.lock.lockfile:read_lock"),
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
        from pipeline.smoke import on_lab as stage

        digest = str(run.upstream[f"push:{name}"]["digest"])
        earlier: Any = run.upstream[f"smoke:{name}"]["report"]
        points = earlier["checks"]["launcher"]["points"]
        with _reported(config, f"{name}.launcher") as report:
            smoked = stage.smoke_launcher(config.root, digest, name, image, target.address, repository, points, run.log)
            report.update(smoked.report)
        return {"digest": digest, "report": report}

    return Task(
        name=f"smoke:{name}:launcher",
        doc=f"{name} on the lab's two machines, as launch-cluster.sh of every era drives it",
        inputs=Inputs(
            files=(*ON_MACHINES, EMULATION),
            params={"workdir": image.workdir},
            tools=(f"emulator {image.platform}",),
            code=("pipeline.smoke.on_lab",),
        ),
        needs=(f"lock:{LAB.name}", f"smoke:{name}", f"push:{name}"),
        run=run,
        world=lambda outputs: (claims.manifest(target.address, repository, *(str(outputs["digest"]),) * 2),),
    )


@contextmanager
def _reported(config: Config, name: str) -> Iterator[dict[str, Json]]:
    """A report to fill in, written to artifacts/smoke/ however the checks end."""
    from pipeline.smoke.report import SmokeError

    report: dict[str, Json] = {}
    try:
        yield report
    except SmokeError as error:
        report.update(error.report)
        raise
    finally:
        if report:
            file = config.root / "artifacts" / "smoke" / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(redact.clean_json(report), indent=1, sort_keys=True) + "\n", encoding="utf-8")
