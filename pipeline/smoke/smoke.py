"""Stage smoke: image → verdict, by probes that run inside containers of the image's own platform.

Three containers at most: one that answers every question about Python and the launcher contract, and a pair for Ray,
side by side. No check hides another; all run, then the stage fails with the names of those that did not pass.
"""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pipeline.config.models import Image
from pipeline.core import platforms
from pipeline.core.errors import ConfigError, HostError, TandemError
from pipeline.core.log import Log, announce
from pipeline.core.names import normalised_name
from pipeline.host import engine
from pipeline.host.containers import sweep
from pipeline.image import own_files
from pipeline.smoke import launcher, python, ray
from pipeline.smoke.containers import SMOKE, BoxError, Yard
from pipeline.smoke.probe import ask
from pipeline.smoke.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from docker import DockerClient

Json = dict[str, Any]
USUAL = {False: 60.0, True: 180.0}
"""Seconds that all checks take as a rule, without and with an emulator."""
WITHIN = {False: 600.0, True: 1200.0}
"""Seconds that one life of the Python probe may take."""
# As the Docker engine names machines, and as platforms do.


@dataclass(frozen=True, slots=True)
class Smoked:
    """The proof that an image passed every check that its image.yaml asks for."""

    reference: str
    report: Json


class SmokeError(TandemError):
    """At least one check did not pass; `report` has them all."""

    def __init__(self, message: str, report: Json, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.report = report


def run(
    reference: str,
    image_name: str,
    image: Image,
    locked: Mapping[str, str],
    folder: Path,
    log: Log,
    inside: Collection[str] = (),
) -> Smoked:
    """Check the image that the local engine has under `reference` (name@digest or id).

    `locked` is every locked distribution's normalised name and version; `folder` is the image's own folder. On another
    image, `inside` are those of them that it brought.
    Raises SmokeError once all checks have run, ConfigError if image.yaml points to a config.json or a project that is
    not there, HostError without an engine, Cancelled.
    """
    config = _config_file(image, folder)
    ours = _ours(image_name, image, folder)
    with engine.session(error=HostError) as client:
        for name in sweep(client, SMOKE):
            log.line(f"removed {name}, left behind by a killed run")
        overlay = folder / image.files if image.files else None
        wanted = python.Wanted(image, locked, ours, frozenset(inside), overlay)
        verdicts = _all(client, reference, wanted, config, _Shared(log))
    report = _report(image_name, reference, image, verdicts)
    for line in table(verdicts):
        announce(log, line)
    _raise_unless_ok(image_name, verdicts, report)
    return Smoked(reference, report)


def _config_file(image: Image, folder: Path) -> bytes | None:
    if image.smoke.config is None:
        return None
    file = folder / image.smoke.config / "config.json"
    if not file.is_file():
        raise ConfigError(
            f"{folder / 'image.yaml'}: smoke.config is {image.smoke.config!r}, but {file} is not there",
            hint="put the target model's config.json there, or take the key out",
        )
    return file.read_bytes()


def _ours(image_name: str, image: Image, folder: Path) -> dict[str, str]:
    """Normalised name and version of each distribution of our own, whatever its folder is called."""
    projects = own_files.projects(image_name, image, folder).values()
    return {normalised_name(str(project["name"])): str(project["version"]) for project in projects}


class _Shared:
    """A log that several checks write to at once."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = Lock()

    def line(self, text: str) -> None:
        with self._lock:
            self._log.line(text)

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        with self._lock:
            self._log.progress(title, done, total, unit)


def _all(
    client: "DockerClient", reference: str, wanted: python.Wanted, config: bytes | None, log: Log
) -> list[Verdict]:
    about = _inspect(client, reference)
    emulated = _emulated(client, about)
    yard = Yard(client, reference, f"{about['Os']}/{about['Architecture']}", emulated=emulated)
    with ThreadPoolExecutor(2) as pool:
        inside = pool.submit(_inside, yard, about, wanted, config, log, WITHIN[emulated])
        pair = pool.submit(ray.check, yard, log) if wanted.image.smoke.ray else None
        futures: list[Future[Any]] = [inside, *([pair] if pair else [])]
        begun = time.monotonic()
        while not all(future.done() for future in futures):
            log.progress("smoke", time.monotonic() - begun, USUAL[emulated], "s")
            time.sleep(0.5)
    return [*inside.result(), *([pair.result()] if pair else [])]


def _inspect(client: "DockerClient", reference: str) -> Json:
    from docker.errors import ImageNotFound

    try:
        about: Json = client.images.get(reference).attrs
    except ImageNotFound as error:
        raise TandemError(f"the engine has no image {reference}", hint="build it first") from error
    return about


def _emulated(client: "DockerClient", about: Json) -> bool:
    machine = str(client.info()["Architecture"])
    return platforms.architecture_of(machine) != str(about["Architecture"])


def _inside(
    yard: Yard, about: Json, wanted: python.Wanted, config: bytes | None, log: Log, within: float
) -> list[Verdict]:
    """The checks of one container: all but Ray's."""
    image = wanted.image
    questions = [*python.questions(image), *(launcher.QUESTIONS if image.smoke.launcher else ())]
    faults = launcher.inspect_faults(about, image.platform) if image.smoke.launcher else []
    if image.smoke.launcher:
        faults += launcher.entrypoint_faults(yard, about)
    try:
        with yard.box("probe", files={"config/config.json": config} if config else {}) as box:
            facts, said = launcher.collect(box) if image.smoke.launcher else ({}, None)
            answers = ask(box, list(dict.fromkeys(questions)), within=within, log=log)
    except BoxError as error:
        names = [*python.names(image), *([launcher.NAME] if image.smoke.launcher else [])]
        return [Verdict(name, Outcome.FAILED, (str(error),)) for name in names]
    verdicts = python.verdicts(wanted, answers)
    if said is not None:
        verdicts.append(launcher.verdict(facts, said, answers, faults, image.workdir, image.smoke.without))
    return verdicts


def _report(image_name: str, reference: str, image: Image, verdicts: list[Verdict]) -> Json:
    """The report: no times, so that two runs of one image say the same."""
    checks = {verdict.check: verdict.as_json() for verdict in verdicts}
    return {"image": image_name, "reference": reference, "platform": image.platform, "checks": checks}


def table(verdicts: list[Verdict]) -> list[str]:
    """The verdicts as lines of a table, for people."""
    import io

    from rich.console import Console
    from rich.table import Table

    rows = Table("check", "outcome", "what was found")
    for verdict in verdicts:
        rows.add_row(verdict.check, verdict.outcome.value, "\n".join(verdict.details))
    text = io.StringIO()
    Console(file=text, width=120, color_system=None, markup=False).print(rows)
    return text.getvalue().splitlines()


def _raise_unless_ok(image_name: str, verdicts: list[Verdict], report: Json) -> None:
    bad = [verdict for verdict in verdicts if verdict.outcome is not Outcome.OK]
    if not bad:
        return
    lines = [f"  {verdict.check} ({verdict.outcome.value}): {detail}" for verdict in bad for detail in verdict.details]
    names = ", ".join(verdict.check for verdict in bad)
    hint = ""
    if all(verdict.outcome is Outcome.EMULATOR for verdict in bad):
        hint = "the emulator crashed, which says nothing about the image: run it again"
    raise SmokeError(
        f"smoke:{image_name}: {names} of {len(verdicts)} checks did not pass\n" + "\n".join(lines), report, hint=hint
    )
