"""The tasks that check an image: smoke in containers of its platform, and launchers of every era on the lab."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.config.loader import Config
from pipeline.config.models import Image
from pipeline.core import redact
from pipeline.graph.task import Inputs, Json, Outputs, Run, Task
from pipeline.image.results import Built
from pipeline.lock.service_packages import LAB
from pipeline.tasks import claims
from pipeline.tasks.outputs import from_outputs, to_outputs

PROBES = (
    "pipeline/probes/python_facts.py", "pipeline/probes/launcher_facts.sh", "pipeline/probes/entrypoint_report.sh",
)  # fmt: skip
# Without the machines' image store: only a look at a lab that is up tells it, and fingerprints do not look.
MACHINE_PROBES = ("pipeline/probes/machine_facts.py", "pipeline/probes/lab/**")
EMULATION = "pipeline/probes/emulation/**"


def smoke_task(config: Config, name: str, image: Image) -> Task:
    """Returns the task that checks what image.yaml promises, in containers of the image's platform."""
    folder = f"dockerfiles/{name}"
    promises = image.smoke

    def run(run: Run) -> Outputs:
        from pipeline.lock import lockfile
        from pipeline.smoke import smoke as stage

        locked = lockfile.read_lock(name, config.root)
        digest = from_outputs(run.upstream[f"build:{name}"], Built).digest
        with _reported(config, name) as report:
            smoked = stage.smoke(digest, name, image, locked.versions, config.root / folder, run.log, locked.inside)
            report.update(smoked.report)
        return {"digest": digest, "report": report}

    return Task(
        name=f"smoke:{name}",
        doc=f"what {name} promises, checked in containers of its platform",
        inputs=Inputs(
            files=(*([f"{folder}/{promises.config}/**"] if promises.config else []), *PROBES, EMULATION),
            params={
                **to_outputs(promises),
                "workdir": image.workdir,
                "aliases": [[alias.name, alias.version] for alias in image.aliases],
                "distributions": list(image.distributions),
            },
            tools=(f"emulator {image.platform}",),
            code=("pipeline.smoke.smoke", "pipeline.lock.lockfile:read_lock", "pipeline.image.results:Built"),
        ),
        needs=(f"lock:{name}", f"build:{name}"),
        run=run,
        # The tasks that follow need the image, not only the verdict on it.
        world=lambda outputs: (claims.image(str(outputs["digest"])),),
    )


def launcher_task(config: Config, name: str, image: Image) -> Task:
    """Returns the task that runs the pushed image on the lab's machines, as launchers of every era do."""
    target = config.pipeline.registry
    repository = f"{target.repository}/{name}"

    def run(run: Run) -> Outputs:
        from pipeline.registry.push import Pushed
        from pipeline.smoke import on_lab as stage

        digest = from_outputs(run.upstream[f"push:{name}"], Pushed).digest
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
            files=(*MACHINE_PROBES, EMULATION),
            params={"workdir": image.workdir},
            tools=(f"emulator {image.platform}",),
            code=("pipeline.smoke.on_lab", "pipeline.registry.push:Pushed"),
        ),
        needs=(f"lock:{LAB.name}", f"smoke:{name}", f"push:{name}"),
        run=run,
        world=lambda outputs: (claims.manifest(target.address, repository, *(str(outputs["digest"]),) * 2),),
    )


@contextmanager
def _reported(config: Config, name: str) -> Iterator[dict[str, Json]]:
    """Yield a report to fill in; it is written to artifacts/smoke/ however the checks end."""
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
