"""Stage deploy: pushed image + cluster → one tensor-parallel engine that answers, and the verdict on it.

Each step has a name, and fails with the cause that the nodes' logs tell. What a failed or interrupted deploy started
is taken away again; the logs stay.
"""

import io
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cluster import causes, completion
from pipeline.cluster import nodes as clusters
from pipeline.cluster import plan as layout
from pipeline.cluster.plan import Plan
from pipeline.cluster.start import BringUp, Failure
from pipeline.config.models import Cluster, Serve
from pipeline.config.rules import REFERENCE_SUFFIX
from pipeline.core import platforms
from pipeline.core.errors import Cancelled, TandemError
from pipeline.core.log import Log, announce
from pipeline.core.waiting import wait_until
from pipeline.host import engine

Json = dict[str, Any]
ATTEMPTS = 2
COMPLETION_WITHIN = 600.0
USUAL = 40.0
"""Seconds that a completion takes as a rule where nodes are emulated."""
# As the Docker engine names machines, and as platforms do.


class DeployError(TandemError):
    """A step of the deploy failed; `step` is its name, `cause` the catalogue's name for why, if it has one."""

    def __init__(self, step: str, said: str, cause: causes.Cause | None, logs: Path) -> None:
        why = f"\n{cause.cause}" if cause else ""
        super().__init__(f"{step}: {said}{why}\nlogs: {logs}", hint=cause.remedy if cause else "the logs say more")
        self.step = step
        self.cause = cause.name if cause else None


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is deployed: `image` is repository@sha256:…, `model` the folder sent to the nodes (None: they have it)."""

    name: str
    cluster: Cluster
    image: str
    platform: str
    model: Path | None


@dataclass
class Report:
    """The steps that were passed: name, what was found, seconds."""

    rows: list[tuple[str, str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str, log: Log) -> Iterator[list[str]]:
        """One step; the caller appends what it found to the list that it is given."""
        announce(log, f"{name} …")
        found: list[str] = []
        start = time.monotonic()
        yield found
        self.rows.append((name, "; ".join(found), time.monotonic() - start))
        announce(log, f"{name}: {'; '.join(found) or 'done'} ({self.rows[-1][2]:.1f} s)")


def run(target: Target, reference: Mapping[str, Any] | None, logs: Path, log: Log) -> Json:
    """Make the cluster serve, unless it does already; prove it with one completion that agrees with `reference`.

    The nodes' logs go below `logs`. Returns nodes (container, labels, ranks), endpoint and what was answered; no
    times. Raises DeployError, HostError, Cancelled.
    """
    return carry_out(plans(target), target.cluster, reference, logs, log)


def reference(target: Target, logs: Path, log: Log) -> Json:
    """What the same image and model answer on one rank, in a container that is gone afterwards."""
    alone = Target(
        name=target.name + REFERENCE_SUFFIX,
        cluster=layout.alone(target.cluster),
        image=target.image,
        platform=target.platform,
        model=target.model,
    )
    wanted = tuple(layout.anywhere(plan) for plan in plans(alone))
    report = Report()
    with clusters.session(wanted) as nodes:
        try:
            port = _up(nodes, alone.cluster, report, logs, log)
            with report.step("completion", log):
                return _answer(nodes, port, alone.cluster.serve, logs, log)
        finally:
            nodes.remove()


def plans(target: Target) -> tuple[Plan, ...]:
    """The plan of every node. Raises ConfigError, HostError."""
    completion.keys(target.cluster.serve)  # refused before anything starts
    wanted = target.platform.rpartition("/")[2]
    machines = {endpoint: _machine(endpoint) for endpoint in {node.endpoint for node in target.cluster.nodes}}
    emulated = any(machine != wanted for machine in machines.values())
    return layout.plans(
        target.name, target.cluster, target.image, target.platform, model=target.model, emulated=emulated
    )


def carry_out(
    wanted: tuple[Plan, ...], cluster: Cluster, reference: Mapping[str, Any] | None, logs: Path, log: Log
) -> Json:
    """As run(), from the nodes' plans."""
    report = Report()
    with clusters.session(wanted) as nodes:
        port = _serving(nodes)
        ran = port is not None
        if ran:
            log.line("the containers that run are the right ones, and answer: left alone")
        try:
            if port is None:
                port = _up(nodes, cluster, report, logs, log)
            outputs = _judge(nodes, cluster, port, reference, report, logs, log)
            nodes.give_way()
        except BaseException as error:
            # What ran before and only could not be asked to the end stays.
            if not ran or isinstance(error, DeployError):
                nodes.remove()
            raise
    for line in table(outputs, report):
        announce(log, line)
    return outputs


def table(outputs: Json, report: Report) -> list[str]:
    """The verdict, as lines of two tables: steps with their times, nodes with their ranks."""
    from rich.console import Console
    from rich.table import Table

    steps = Table("step", "found", "seconds")
    for name, said, seconds in report.rows:
        steps.add_row(name, said, f"{seconds:.1f}")
    nodes = Table("node", "container", "ranks")
    for node in outputs["nodes"]:
        nodes.add_row(node["node"], node["container"], " ".join(map(str, node["ranks"])))
    console = Console(width=120, color_system=None, markup=False, record=True, file=io.StringIO())
    console.print(steps, nodes)
    title = f"cluster {outputs['cluster']}, executor {outputs['executor']}, image {outputs['digest']}"
    said = f"serves {outputs['model']} at {outputs['endpoint']}: {outputs['prompt']!r} → {outputs['text']!r}"
    return [title, *console.export_text().splitlines(), said]


def _serving(nodes: clusters.Nodes) -> int | None:
    """The port on which the cluster serves, if every container is the wanted one and /health says 200."""
    there = [nodes.found(plan) for plan in nodes.plans]
    if any(clusters.difference(plan, found) for plan, found in zip(nodes.plans, there, strict=True)):
        return None
    port = there[0].published if there[0] else None
    return port if port is not None and BringUp.healthy(port) else None


def _up(nodes: clusters.Nodes, cluster: Cluster, report: Report, logs: Path, log: Log) -> int:
    """Start everything; the published port. Starts once more if the cause of a failure is one that passes."""
    for attempt in range(1, ATTEMPTS + 1):
        bringing = BringUp(nodes, cluster, report.step, logs, log)
        try:
            return bringing.run()
        except Failure as failure:
            error = _explained(failure, bringing, logs)
            nodes.remove()
            if not (failure.cause and failure.cause.again) or attempt == ATTEMPTS:
                raise error from failure
            log.line(f"{failure.cause.cause}: once more")
        except BaseException:
            bringing.collect()
            nodes.remove()
            raise
    raise AssertionError("unreachable")


def _explained(failure: Failure, bringing: BringUp, logs: Path) -> DeployError:
    bringing.collect()
    return DeployError(failure.step, str(failure), failure.cause, logs)


def _judge(
    nodes: clusters.Nodes,
    cluster: Cluster,
    port: int,
    reference: Mapping[str, Any] | None,
    report: Report,
    logs: Path,
    log: Log,
) -> Json:
    model = cluster.serve.name
    with report.step("model", log) as found:
        _listed(nodes, port, cluster.serve, logs)
        found.append(model)
    with report.step("completion", log) as found:
        answer = _answer(nodes, port, cluster.serve, logs, log)
        found.append(repr(answer["text"]))
    if reference is not None:
        with report.step("verdict", log) as found:
            apart = completion.differences(answer, reference)
            if apart:
                raise DeployError("verdict", "; ".join(apart), causes.WRONG_ANSWER, logs)
            tokens = len(answer["tokens"])
            found.append(f"{tokens} tokens as on one rank, within {completion.widest(answer, reference):.1e}")
    return {
        "cluster": nodes.plans[0].cluster,
        "digest": nodes.plans[0].digest,
        "executor": cluster.executor,
        "endpoint": f"http://127.0.0.1:{port}/v1",
        "model": model,
        "nodes": [_node(plan) for plan in nodes.plans],
        "prompt": completion.PROMPT,
        "text": answer["text"],
        "tokens": answer["tokens"],
    }


def _listed(nodes: clusters.Nodes, port: int, serve: Serve, logs: Path) -> None:
    """See that the service lists the model. Raises DeployError."""
    try:
        listed = BringUp.models(port, serve)
    except Failure as failure:
        raise DeployError(failure.step, str(failure), _cause(nodes, logs), logs) from failure
    if serve.name not in listed:
        raise DeployError("model", f"/v1/models lists {listed}, not {serve.name}", None, logs)


def _answer(nodes: clusters.Nodes, port: int, serve: Serve, logs: Path, log: Log) -> Json:
    """The completion, awaited with a sign of life. Raises DeployError with the cause that the nodes' logs tell of."""
    pool = ThreadPoolExecutor(1)
    try:
        asked = pool.submit(completion.ask, port, serve, within=COMPLETION_WITHIN)
        timeout_s = 2 * COMPLETION_WITHIN
        wait_until(asked.done, timeout_s=timeout_s, interval_s=0.2, log=log, title="completion", usual_s=USUAL)
        return asked.result(timeout=0)
    except (OSError, TandemError) as error:
        if isinstance(error, Cancelled):
            raise
        raise DeployError("completion", completion.hidden(str(error), serve), _cause(nodes, logs), logs) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _cause(nodes: clusters.Nodes, logs: Path) -> causes.Cause | None:
    """What the nodes' log files tell of."""
    files = [logs / f"{plan.node}.log" for plan in nodes.plans]
    return causes.diagnose([file.read_text(errors="replace") for file in files if file.exists()])


def _node(plan: Plan) -> Json:
    labels: Json = dict(plan.labels)
    return {
        "node": plan.node,
        "endpoint": plan.endpoint,
        "container": plan.container,
        "labels": labels,
        "ranks": list(plan.ranks),
    }


def _machine(endpoint: str) -> str:
    if endpoint == "local":
        architecture = str(engine.look(endpoint, "/info")["Architecture"])
    else:
        client = engine.client(endpoint)
        try:
            architecture = str(client.info()["Architecture"])
        finally:
            client.close()
    return platforms.architecture_of(architecture)
