"""Collects what advice needs: two images read, vLLM's registry as it runs, and the resolver's answers."""

import hashlib
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pipeline.config.models import Additions
from pipeline.core import platforms, procs
from pipeline.core.errors import ConfigError, HostError, TandemError
from pipeline.core.log import Log, step
from pipeline.core.waiting import wait_until
from pipeline.foreign import comparison, facts_cache, pull
from pipeline.foreign.combinations import LaterVllm, ResolveAttempt
from pipeline.foreign.comparison import RunningRegistry, Side, heads_first
from pipeline.host import engine
from pipeline.host.containers import remove_abandoned
from pipeline.lock import additions, alternatives, resolver
from pipeline.smoke import probe
from pipeline.smoke.containers import SMOKE_LABEL, ContainerError, ContainerFactory, ProbeContainer
from pipeline.smoke.probe import TIMEOUT_S, USUAL_S

MAX_LOADED_ARCHITECTURES = 8  # architectures that are loaded, besides the listing of all


def read_side(reference: str, platform: str, root: Path, log: Log) -> Side:
    """Resolves an image to its digest and reads it. Raises what foreign.pull raises."""
    digest = pull.resolve_digest(reference, platform, log)
    scan = facts_cache.scan_image(reference, digest, platform, root, log)
    return Side(f"{pull.repository_of(reference)}@{digest}", scan.facts)


def add_running_registry(side: Side, architectures: Sequence[str], root: Path, log: Log) -> Side:
    """Returns the side with the registry of its vLLM as it runs, in a container without network.

    The first architectures are loaded too. If it cannot be asked here (the platform does not run, the emulator
    crashed), the result has an `error`. Answers are cached like the facts of images.
    """
    first = heads_first(architectures, side.facts.architectures)[:MAX_LOADED_ARCHITECTURES]
    digest_of_names = hashlib.sha256("\n".join(first).encode()).hexdigest()[:12]
    file = facts_cache.cache_file(
        root, side.facts.digest, side.facts.platform, f"running-{digest_of_names}", ("probes/python_facts",)
    )
    running = facts_cache.load(file, RunningRegistry)
    if running is None:
        running = _ask_registry(side, first, log)
        if not running.error:
            facts_cache.store(file, running)
    return replace(side, running=running)


def try_additions(side: Side, wanted: Additions, origin: str, log: Log) -> ResolveAttempt:
    """Asks the resolver to add Ray, or the packages that image.yaml asks for, to a side."""
    request = resolver.WheelRequest(
        requirements=wanted.requirements,
        constraints=wanted.constraints,
        target=additions.wheel_target(side.facts),
        cutoff=wanted.cutoff or _today(),
        origin=origin,
        pins={},
    )
    try:
        with step(log, f"resolving {', '.join(wanted.requirements)} on top of {side.reference}"):
            wheels = additions.resolve_additions(side.facts, request, log)
    except ConfigError as error:
        return ResolveAttempt(refused=_worded(error))
    except procs.ProgramError:
        raise
    except TandemError as error:
        if error.code != TandemError.code:
            raise
        return ResolveAttempt(refused=_worded(error), unknown=True)
    return ResolveAttempt(
        requirements=tuple(wanted.requirements), added=tuple(f"{wheel.name} {wheel.version}" for wheel in wheels)
    )


def find_later_vllm(model: Side, cluster: Side, log: Log) -> LaterVllm | None:
    """Returns the oldest later vLLM that resolves with the model's Transformers; None if the cluster's allows these."""
    version = model.facts.version("transformers").partition("+")[0]
    if cluster.vllm is None or not comparison.transformers_conflicts(model, cluster):
        return None
    request = resolver.WheelRequest(
        requirements=(),
        constraints=(),
        target=additions.wheel_target(cluster.facts),
        cutoff=_today(),
        origin="advise",
        pins={},
        lowest=True,
        within=alternatives.SEARCH_TIMEOUT_S,
    )
    wish = partial(alternatives.with_versions_between, "vllm", cluster.version)
    with step(log, f"looking for a vLLM that resolves with transformers {version}"):
        candidate = alternatives.best_version(
            "vllm", wish, [f"transformers=={version}"], resolver.solver(request, log), alternatives.search_deadline()
        )
    return LaterVllm(candidate.version, candidate.proven)


def _today() -> str:
    return str(datetime.now(UTC).date())


def _worded(error: TandemError) -> str:
    return f"{error}\n{error.hint}".strip()


def _ask_registry(side: Side, architectures: Sequence[str], log: Log) -> RunningRegistry:
    with engine.session(error=HostError) as client:
        for name in remove_abandoned(client, SMOKE_LABEL):
            log.line(f"removed {name}, left behind by a killed run")
        machine = str(client.info()["Architecture"])
        emulated = platforms.architecture_of(machine) != platforms.architecture_in(side.facts.platform)
        factory = ContainerFactory(client, side.reference, side.facts.platform, emulated=emulated)
        with step(log, f"asking the registry of vLLM {side.version}" + (" (emulated)" if emulated else "")):
            return _in_container(factory, side, architectures, log)


def _in_container(factory: ContainerFactory, side: Side, architectures: Sequence[str], log: Log) -> RunningRegistry:
    python = side.facts.python
    path = os.path.dirname(python.path) + ":" + (side.facts.env.get("PATH") or "/usr/local/bin:/usr/bin:/bin")  # noqa: PTH120  # the image's
    try:
        with factory.start("advise", env={"PATH": path}) as container:
            starts = container.run(["python3", "-c", ""], timeout_s=TIMEOUT_S[factory.emulated])
            if starts.status != 0:
                return RunningRegistry(
                    error=f"its python3 does not run on this machine: {starts.output.strip()[-200:]}"
                )
            return _running(container, architectures, factory.emulated, log)
    except ContainerError as error:
        return RunningRegistry(error=str(error))


def _running(container: ProbeContainer, architectures: Sequence[str], emulated: bool, log: Log) -> RunningRegistry:
    questions = ["models", *(f"registry:{name}" for name in architectures)]
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(probe.ask_probe, container, questions, timeout_s=TIMEOUT_S[emulated], log=log)
        usual_s = USUAL_S[emulated]
        try:
            wait_until(job.done, timeout_s=math.inf, interval_s=0.2, log=log, title="vLLM's registry", usual_s=usual_s)
        except KeyboardInterrupt:
            procs.cancel()
            raise
        answers = job.result()
    listing = answers["models"]
    if listing.error:
        return RunningRegistry(error=("the emulator crashed: " if listing.crashed else "") + listing.error)
    fails, loaded = {}, []
    for name in architectures:
        answer = answers[f"registry:{name}"]
        if answer.crashed:
            return RunningRegistry(error=f"the emulator crashed at {name}")
        why = answer.error or str((answer.value or {}).get("fails", ""))
        if why:
            fails[name] = why
        elif answer.value["listed"]:
            loaded.append(name)
    return RunningRegistry(
        listed=tuple(listing.value["listed"]),
        plugins=tuple(listing.value["plugins"]),
        loaded=tuple(loaded),
        fails=fails,
    )
