"""Stage smoke: image → verdict, by probes that run in containers of the image's own platform.

One container answers all questions about Python; a check that needs more has containers of its own. No check hides
another: all of them run, and then the stage fails with the names of those that did not pass.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.models import Image
from pipeline.core import platforms
from pipeline.core.errors import HostError
from pipeline.core.log import ForwardingLog, Log
from pipeline.core.names import normalised_name
from pipeline.core.waiting import wait_until
from pipeline.host import engine
from pipeline.host.containers import remove_abandoned
from pipeline.image import own_files
from pipeline.smoke import architectures, consistency, imports, launcher, model_config, ray, versions
from pipeline.smoke.check import Check, Expectations, Experiment
from pipeline.smoke.containers import SMOKE_LABEL, ContainerError, ContainerFactory
from pipeline.smoke.probe import TIMEOUT_S, USUAL_S, Answers, ProbeAnswer, ask_probe
from pipeline.smoke.report import Smoked, conclude
from pipeline.smoke.verdict import Verdict, verdict_of

if TYPE_CHECKING:
    from docker import DockerClient

CHECKS: tuple[Check, ...] = (
    versions.CHECK,
    consistency.CHECK,
    imports.CHECK,
    architectures.CHECK,
    model_config.CHECK,
    launcher.CHECK,
    ray.CHECK,
)
"""All checks, in the order of their questions and of the table."""


def smoke(
    reference: str,
    image_name: str,
    image: Image,
    locked: Mapping[str, str],
    folder: Path,
    log: Log,
    inherited: Collection[str] = (),
) -> Smoked:
    """Checks the image that the local engine has under `reference` (name@digest or Id).

    `locked` has the version of every locked distribution by normalised name; `inherited` names those of them that the
    base image brought; `folder` is the image's own folder. Raises SmokeError once all checks have run, ConfigError if
    image.yaml points to a config.json or a project that does not exist, HostError without an engine, TandemError if
    the engine does not have the image, Cancelled.
    """
    checks = [check for check in CHECKS if check.asked(image)]
    files = {path: content for check in checks for path, content in check.files(image, folder).items()}
    own = _own_distributions(image_name, image, folder)
    overlay = folder / image.files if image.files else None
    expected = Expectations(image, locked, own, frozenset(inherited), overlay)
    with engine.session(error=HostError) as client:
        for name in remove_abandoned(client, SMOKE_LABEL):
            log.line(f"removed {name}, which a killed run left behind")
        verdicts = _judge_all(_factory(client, reference), checks, expected, files, ForwardingLog(log))
    subject = {"image": image_name, "reference": reference, "platform": image.platform}
    return conclude(f"smoke:{image_name}", subject, verdicts, log)


def _own_distributions(image_name: str, image: Image, folder: Path) -> dict[str, str]:
    """Returns normalised name and version of each distribution of our own; its folder may have another name."""
    projects = own_files.projects(image_name, image, folder).values()
    return {normalised_name(str(project["name"])): str(project["version"]) for project in projects}


def _factory(client: "DockerClient", reference: str) -> ContainerFactory:
    """Returns the factory of containers that the image's platform needs."""
    description = ContainerFactory(client, reference, "", emulated=False).description()
    machine = platforms.architecture_of(str(client.info()["Architecture"]))
    architecture = str(description["Architecture"])
    platform = f"{description['Os']}/{architecture}"
    return ContainerFactory(client, reference, platform, emulated=machine != architecture)


def _judge_all(
    factory: ContainerFactory, checks: Sequence[Check], expected: Expectations, files: Mapping[str, bytes], log: Log
) -> list[Verdict]:
    """Asks all questions, makes all experiments, two things at a time, and lets each check judge the answers."""
    questions = tuple(dict.fromkeys(question for check in checks for question in check.questions(expected.image)))
    experiments = {name: experiment for check in checks for name, experiment in check.experiments.items()}
    with ThreadPoolExecutor(2) as pool:
        probe = pool.submit(_ask, factory, questions, files, log)
        # The last checks take longest.
        tried = {name: pool.submit(_try, experiments[name], factory, log) for name in reversed(experiments)}
        futures: list[Future[Any]] = [probe, *tried.values()]
        wait_until(
            lambda: all(future.done() for future in futures),
            timeout_s=math.inf, interval_s=0.5, log=log, title="smoke", usual_s=USUAL_S[factory.emulated],
        )  # fmt: skip
    answers = {name: future.result() for name, future in tried.items()}
    try:
        answers.update(probe.result())
    except ContainerError as error:
        return [_judge_without_probe(check, expected, answers, str(error)) for check in checks]
    return [check.judge(expected, answers) for check in checks]


def _ask(
    factory: ContainerFactory, questions: Sequence[str], files: Mapping[str, bytes], log: Log
) -> dict[str, ProbeAnswer]:
    with factory.start("probe", files=files) as container:
        return ask_probe(container, questions, timeout_s=TIMEOUT_S[factory.emulated], log=log)


def _try(experiment: Experiment, factory: ContainerFactory, log: Log) -> ProbeAnswer:
    try:
        return experiment(factory, log)
    except ContainerError as error:
        log.line(str(error))
        return ProbeAnswer(error=str(error))


def _judge_without_probe(check: Check, expected: Expectations, answers: Answers, error: str) -> Verdict:
    """Fails every check that has a question."""
    if check.questions(expected.image):
        return verdict_of(check.name, [error], "")
    return check.judge(expected, answers)
