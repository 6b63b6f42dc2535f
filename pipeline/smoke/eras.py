"""Checks `era A` to `era D`: what launch-cluster.sh did at its four ages, done to an image on two machines.

The very command lines of pipeline.smoke.era_commands, with docker's own program, until `ray status` shows both
machines; and what each era does with a cluster that stands. Nobody's launcher starts Ray with a token, so a cluster is
open unless the operator's own docker arguments bring one; the verdict says so.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config.launcher_contract import POINTS
from pipeline.config.models import Image
from pipeline.core import procs
from pipeline.core.errors import Cancelled
from pipeline.core.log import Log, announce, step
from pipeline.smoke import era_commands
from pipeline.smoke.era_commands import Terms
from pipeline.smoke.era_machines import Endpoint, Fault, Station, last, unique
from pipeline.smoke.era_setup import Field, prepared
from pipeline.smoke.ray import ERRORS, TOO_SLOW, read_status
from pipeline.smoke.smoke import Smoked, SmokeError, table
from pipeline.smoke.verdict import Outcome, Verdict, crash_verdict, emulator_speaks, judge

ATTEMPTS = 3
DIFFERS = ": launchers refuse"
NODES = 2
READY_WITHIN = {False: 60, True: 900}
"""Seconds until `ray status` shows what it should: 30 tries, 2 s apart, as launchers have it; and with an emulator."""
EVERY = 2
COMMAND_WITHIN = {False: 120, True: 900}
POLL = {False: 1, True: 5}
MOD = "of-the-check"
RUN_SH = """#!/bin/bash
set -e
printf 'mod in %s, node in %s\\n' "$PWD" "$WORKSPACE_DIR" > ran
"""
OPEN = "open: Ray runs without a token, as launchers start it, so whoever reaches its port runs code there"
CLOSED = "closed by the token among the operator's docker arguments"
PARSER = (
    "import sys; from vllm.entrypoints.openai import cli_args;"
    " cli_args.make_arg_parser(cli_args.FlexibleArgumentParser()).parse_args(sys.argv[2:]); print(sys.argv[1])"
)
"""The parser of `vllm serve` alone; it says its first argument if it takes the others."""


def run(
    reference: str,
    image_name: str,
    image: Image,
    machines: Sequence[Endpoint],
    environment: Mapping[str, str],
    log: Log,
    *,
    points: Mapping[str, Sequence[str]] | None = None,
    arguments: Sequence[str] = (),
    substitutions: Sequence[str] = (),
) -> Smoked:
    """Check an image, which two machines (the head first) have already, under the launcher of every era.

    `points` are what the check `launcher` found for each point of the contract (contract.by_point), to which one Id on
    both machines is added. `environment` is laid over this process's for docker; `arguments` are the operator's own for
    every `docker run`; `substitutions` say what the machines are not. Raises SmokeError once all eras have run,
    HostError for machines that cannot take part or keep images in unlike stores, TandemError for one without the image,
    Cancelled.
    """
    with prepared(machines, environment, image.workdir, arguments, substitutions, log) as field:
        for substitution in field.substitutions:
            announce(log, f"in another's place: {substitution}")
        eras = [check(name, field, log) for name in ERAS]
    verdicts = [*_points(points or {}, eras), *eras]
    report = {
        "image": image_name,
        "reference": reference,
        "platform": image.platform,
        "machines": [machine.name for machine in machines],
        "substitutions": list(field.substitutions),
        "checks": {verdict.check: verdict.as_json() for verdict in verdicts},
    }
    for line in table(verdicts):
        announce(log, line)
    bad = [verdict for verdict in verdicts if verdict.outcome is not Outcome.OK]
    if bad:
        lines = [f"  {v.check} ({v.outcome.value}): {detail}" for v in bad for detail in v.details]
        names = ", ".join(verdict.check for verdict in bad)
        crashed = all(verdict.outcome is Outcome.EMULATOR for verdict in bad)
        raise SmokeError(
            f"smoke:{image_name}:launcher: {names} of {len(verdicts)} did not pass\n" + "\n".join(lines),
            report,
            hint="the emulator crashed, which says nothing about the image: run it again" if crashed else "",
        )
    return Smoked(reference, report)


def _points(points: Mapping[str, Sequence[str]], eras: Sequence[Verdict]) -> Iterator[Verdict]:
    """A verdict for each point of the contract; one Id on both machines is what era D has looked at."""
    differs = [words for verdict in eras for words in verdict.details if DIFFERS in words]
    for number, faults in points.items():
        yield judge(f"point {number}", [*faults, *(differs if number == "1" else ())], POINTS[int(number)])


def check(name: str, field: Field, log: Log) -> Verdict:
    """The verdict on one of ERAS, after up to ATTEMPTS launches where the emulator crashed or Ray was too slow."""
    fault = Fault("")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with step(log, name):
                found = ERAS[name](field, log)
        except Fault as caught:
            log.line(f"{name}: {caught} (attempt {attempt} of {ATTEMPTS})")
            fault = caught
            if not fault.again and not fault.crashed:
                break
        else:
            return judge(name, [], f"{found}; {CLOSED if field.closed else OPEN}")
        finally:
            for station in field.stations:
                station.clear()
    return crash_verdict(name, str(fault), ATTEMPTS) if fault.crashed else judge(name, [str(fault)], "")


def _era_a(field: Field, log: Log) -> str:
    _script_nodes(field, log, mods=False)
    for station, terms in field.pairs():
        _environment("A", station, terms)
        _detached(field, station, terms)
    _launch_script(field.head)
    return f"{NODES} nodes by {era_commands.SCRIPT}, whose ~/.bashrc later commands read"


def _era_a_mods(field: Field, log: Log) -> str:
    _script_nodes(field, log, mods=True)
    for station, _ in field.pairs():
        ran = station.must(era_commands.execute("A", f"cat {era_commands.MODS}/{MOD}/ran"), "the mod did not run")
        expected = f"mod in {era_commands.MODS}/{MOD}, node in {field.workdir}"
        if expected not in ran:
            raise Fault(f"{station.endpoint.name}: the mod ran otherwise than {expected!r}: {last(ran)}")
    return f"{NODES} nodes, each after a mod was copied and run in it"


def _era_b(field: Field, log: Log) -> str:
    _ray_nodes("B", field, log)
    return f"{NODES} nodes by `ray start` in containers that sleep, under the image's own entrypoint"


def _era_c(field: Field, log: Log) -> str:
    _ray_nodes("C", field, log)
    return f"{NODES} nodes by `ray start`, with the entrypoint cleared"


def _era_d(field: Field, log: Log) -> str:
    ids = [s.must(era_commands.identity(t.image), "no image").splitlines()[-1] for s, t in field.pairs()]
    if len(set(ids)) > 1:
        names = [station.endpoint.name for station in field.stations]
        raise Fault(f"{names[0]} has the image as {ids[0]}, {names[1]} as {ids[1]}{DIFFERS}; pull one digest")
    _ray_nodes("D", field, log)
    for station, terms in field.pairs():
        _without_ray(field, station, terms)
    return f"one Id ({ids[0][:19]}) on both, {NODES} nodes by `ray start`, and without Ray vllm takes its options"


ERAS: dict[str, Callable[[Field, Log], str]] = {
    "era A": _era_a,
    "era A, mods": _era_a_mods,
    "era B": _era_b,
    "era C": _era_c,
    "era D": _era_d,
}


def _script_nodes(field: Field, log: Log, *, mods: bool) -> None:
    """Start both machines as era A does. Raises Fault."""
    for number, (station, terms) in enumerate(field.pairs()):
        if number and field.emulated:
            _wait_for(field, 1, log)
        station.launch(era_commands.run("A", terms, mods=mods))
        if mods and field.emulated:
            _mod(station)
    if mods and not field.emulated:
        for station in field.stations:
            _mod(station)
    _wait_for(field, NODES, log)


def _mod(station: Station) -> None:
    with tempfile.TemporaryDirectory(prefix="tandem-mod-") as folder:
        script = Path(folder) / "run.sh"
        script.write_text(RUN_SH, encoding="utf-8")
        for words in era_commands.mod(folder, MOD):
            station.must(words, f"the mod cannot be applied (docker {words[0]})")


def _ray_nodes(era: str, field: Field, log: Log) -> None:
    """Start both machines as eras B to D do, and look at the environment that they have given. Raises Fault."""
    for station, terms in field.pairs():
        station.launch(era_commands.run(era, terms))
        if era in "CD":
            station.must(era_commands.workspace(), "mkdir -p /workspace")
    for number, (station, terms) in enumerate(field.pairs(), 1):
        station.must(era_commands.ray(terms), "`ray start` does not start")
        _wait_for(field, number, log)
        _environment(era, station, terms)
    if "Ray runtime started" not in field.head.output():
        raise Fault(
            f"{field.head.endpoint.name}: what `ray start` says to /proc/1/fd/1 is not in `docker logs`:"
            f" {last(field.head.output())}"
        )


def _wait_for(field: Field, nodes: int, log: Log) -> None:
    """Ask `ray status` on the head until it shows that many machines. Raises Fault, Cancelled."""
    deadline = time.monotonic() + READY_WITHIN[field.emulated]
    while True:
        said = field.head.docker(era_commands.status(), within=COMMAND_WITHIN[field.emulated], quiet=True)
        seen = read_status(said.text)[0] if said.status == 0 else 0
        if seen >= nodes:
            log.line(f"`ray status`: {seen} nodes")
            return
        late = time.monotonic() > deadline
        for station, _ in zip(field.stations, range(nodes), strict=False):
            _look_after(station, late=late, waited=f"`ray status` shows {seen} of {nodes} nodes")
        if procs.cancelled():
            raise Cancelled("interrupted")
        time.sleep(EVERY)


def _look_after(station: Station, *, late: bool, waited: str) -> None:
    """Raise Fault if a machine's container has ended, Ray in it has, or it is too late."""
    alive = station.alive()
    if alive and not late and not _ray_ended(station):
        return
    name, output = station.endpoint.name, station.output() if alive else station.last_words()
    errors = station.docker(["exec", era_commands.NAME, "bash", "-c", ERRORS], quiet=True).text if alive else ""
    slow = TOO_SLOW.search(output + errors) is not None
    crashed = not slow and emulator_speaks(output + errors)
    why = "Ray gives its raylet 30 s to start, and it took longer" if slow else _mismatch(output) or last(output)
    ended = waited if late else "`ray start` has ended" if alive else "the container has ended"
    raise Fault(f"{name}: {ended}: {why}", crashed=crashed, again=slow)


def _mismatch(output: str) -> str:
    """What Ray says where a node's Ray or Python is not the cluster's, on one line; empty if that is not it."""
    if "Version mismatch" not in output:
        return ""
    said = re.findall(r"^\s*(Ray|Python): (\S+)", output.partition("Version mismatch")[2], re.MULTILINE)
    cluster, node = (" and ".join(f"{what} {version}" for what, version in said[at : at + 2]) for at in (0, 2))
    return f"Version mismatch: the cluster has {cluster}, this node {node}: run one image, by digest, on both"


def _ray_ended(station: Station) -> bool:
    """Whether a container that only sleeps has no `ray start` any more; that of era A ends with it."""
    processes = station.docker(["top", era_commands.NAME, "-eo", "pid,args"], quiet=True)
    return processes.status == 0 and "sleep infinity" in processes.text and "ray start" not in processes.text


def _environment(era: str, station: Station, terms: Terms) -> None:
    """Whether a command that is executed sees what the era gives it. Raises Fault."""
    expected = era_commands.environment(terms)
    if era == "D":
        expected["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    said = station.must(era_commands.execute(era, "export -p"), "no command can be executed")
    for name, value in expected.items():
        if f'{name}="{value}"' not in said:
            raise Fault(f"{station.endpoint.name}: a command that is executed does not see {name}={value}")


def _detached(field: Field, station: Station, terms: Terms) -> None:
    """Whether a detached command of era A sees the environment, and its output is in `docker logs`. Raises Fault."""
    mark = unique("detached")
    station.must(era_commands.execute_detached("A", f"echo {mark} $VLLM_HOST_IP"), "no command can be detached")
    what = f"{station.endpoint.name}: the output of a detached command that says VLLM_HOST_IP={terms.own}"
    _until(lambda: f"{mark} {terms.own}" in station.output(), field, what)


def _until(there: Callable[[], bool], field: Field, what: str) -> None:
    deadline = time.monotonic() + COMMAND_WITHIN[field.emulated]
    while not there():
        if procs.cancelled():
            raise Cancelled("interrupted")
        if time.monotonic() > deadline:
            raise Fault(f"{what} does not come")
        time.sleep(POLL[field.emulated])


def _launch_script(head: Station) -> None:
    mark = unique("script")
    with tempfile.TemporaryDirectory(prefix="tandem-script-") as folder:
        file = Path(folder) / "exec-script.sh"
        file.write_text(f'#!/bin/bash\necho "{mark} $VLLM_HOST_IP"\n', encoding="utf-8")
        for words in era_commands.launch_script(str(file)):
            head.must(words, "the launch script cannot be copied")
    said = head.must(era_commands.execute("A", "/workspace/exec-script.sh"), "the launch script does not run")
    if f"{mark} {head.endpoint.address}" not in said:
        raise Fault(f"{head.endpoint.name}: the launch script does not see VLLM_HOST_IP: {last(said)}")


def _without_ray(field: Field, station: Station, terms: Terms) -> None:
    """Whether vLLM's parser takes what launchers append where Ray is not asked for; run as the head's command is."""
    mark, name = unique("parsed"), station.endpoint.name
    command = ["python3", "-c", PARSER, mark, "model", *era_commands.without_ray(terms)]
    station.must(era_commands.headless(command), "no command can be detached")
    status: list[str] = []

    def over() -> bool:
        said = station.docker(era_commands.ended())
        status[:] = said.text.split() if said.status == 0 else []
        return bool(status)

    _until(over, field, f"{name}: the exit status of a detached command")
    if status != ["0"]:
        raise Fault(
            f"{name}: `vllm serve` does not take {' '.join(era_commands.without_ray(terms))}: {last(station.output())}"
        )
    _until(lambda: mark in station.output(), field, f"{name}: the output of a detached command")
