"""Stage deploy: makes a pushed image and a cluster one tensor-parallel engine that answers, and judges the answer.

Each step has a name (see steps.py), and fails with the cause that the nodes' logs tell of. Deploy removes what a failed
or interrupted attempt started, and keeps the logs.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from pipeline.cluster import causes, service_api
from pipeline.cluster.node_logs import diagnose_files
from pipeline.cluster.nodes import Nodes, difference, open_nodes
from pipeline.cluster.plan import NodePlan, on_any_port, plan_nodes, single_rank
from pipeline.cluster.service_api import Completion, ServiceError
from pipeline.cluster.start import ClusterStart
from pipeline.cluster.steps import Report, Step, StepFailedError
from pipeline.config.models import Cluster, Serve
from pipeline.config.rules import REFERENCE_SUFFIX
from pipeline.core import platforms
from pipeline.core.errors import TandemError
from pipeline.core.log import Log
from pipeline.core.tables import format_boxes
from pipeline.core.waiting import wait_until
from pipeline.host import engine

ATTEMPTS = 2
COMPLETION_TIMEOUT_S = 600.0
USUAL_COMPLETION_S = 40.0
"""The time that a completion usually takes on emulated nodes."""


class DeployError(TandemError):
    """A step of the deploy failed."""

    def __init__(self, step: Step, message: str, cause: causes.Cause | None, logs: Path) -> None:
        reason = f"\n{cause.explanation}" if cause else ""
        hint = cause.remedy if cause else "see the logs above"
        super().__init__(f"{step}: {message}{reason}\nlogs: {logs}", hint=hint)
        self.step = step
        self.cause = cause.name if cause else None
        """The name of the cause in the catalogue, if it has one."""


class PushedImage(Struct, frozen=True):
    """An image that a registry holds: nodes can pull it."""

    address: str
    """host:port of the registry"""
    repository: str
    digest: str

    @property
    def reference(self) -> str:
        """host:port/repository@sha256:…"""
        return f"{self.address}/{self.repository}@{self.digest}"


class AnyImage(Protocol):
    """An image by its name: a pushed one, or one that only the local engine has."""

    @property
    def reference(self) -> str:
        """repository@sha256:…"""


ImageT = TypeVar("ImageT", bound=AnyImage)


@dataclass(frozen=True, kw_only=True)
class DeployTarget(Generic[ImageT]):
    """An image and the cluster that is to serve from it."""

    name: str
    cluster: Cluster
    image: ImageT
    platform: str
    """os/architecture"""
    model: Path | None
    """The folder that is copied to the nodes; None if they have the model."""


class DeployedNode(Struct, frozen=True):
    """A node that serves."""

    node: str
    endpoint: str
    container: str
    labels: dict[str, str]
    ranks: list[int]


class Deployed(Struct, frozen=True, kw_only=True):
    """A cluster that serves, proved by one completion. It contains no times."""

    cluster: str
    digest: str
    executor: str
    endpoint: str
    """The URL of the OpenAI API."""
    model: str
    nodes: list[DeployedNode]
    prompt: str
    text: str
    tokens: list[int]


def deploy(target: DeployTarget[PushedImage], reference: Completion | None, logs: Path, log: Log) -> Deployed:
    """Makes the cluster serve, unless it does already, and checks that one completion agrees with `reference`.

    The nodes' logs go to the folder `logs`. Raises DeployError, ConfigError, HostError, Cancelled.
    """
    return deploy_plans(plan_target(target), target.cluster, reference, logs, log)


def complete_on_one_rank(target: DeployTarget[ImageT], logs: Path, log: Log) -> Completion:
    """Returns the completion of the same image and model on one rank, in a container that is removed afterwards.

    Raises as deploy().
    """
    single = DeployTarget(
        name=target.name + REFERENCE_SUFFIX,
        cluster=single_rank(target.cluster),
        image=target.image,
        platform=target.platform,
        model=target.model,
    )
    report = Report()
    with open_nodes([on_any_port(plan) for plan in plan_target(single)]) as nodes:
        try:
            port = _start(nodes, single.cluster, report, logs, log)
            with report.step(Step.COMPLETION, log):
                return complete(nodes, port, single.cluster.serve, logs, log)
        finally:
            nodes.remove()


def plan_target(target: DeployTarget[ImageT]) -> tuple[NodePlan, ...]:
    """Returns the plan of every node, the head first. Raises ConfigError, HostError."""
    service_api.api_keys(target.cluster.serve)  # refused before anything starts
    wanted = target.platform.rpartition("/")[2]
    endpoints = {node.endpoint for node in target.cluster.nodes}
    emulated = any(_architecture(endpoint) != wanted for endpoint in endpoints)
    image = target.image.reference
    return plan_nodes(target.name, target.cluster, image, target.platform, model=target.model, emulated=emulated)


def deploy_plans(
    plans: tuple[NodePlan, ...], cluster: Cluster, reference: Completion | None, logs: Path, log: Log
) -> Deployed:
    """Does what deploy() does, from the nodes' plans."""
    report = Report()
    with open_nodes(plans) as nodes:
        port = _serving_port(nodes)
        already_served = port is not None
        if already_served:
            log.line("containers are up to date and healthy; nothing to do")
        try:
            if port is None:
                port = _start(nodes, cluster, report, logs, log)
            check_model_listed(nodes, port, cluster.serve, report, logs, log)
            completion = _judged_completion(nodes, cluster.serve, port, reference, report, logs, log)
            nodes.lower_cpu_shares()
            deployed = _deployed(nodes, cluster, port, completion)
        except BaseException as error:
            # A cluster that served before and whose check was merely interrupted stays.
            if not already_served or isinstance(error, DeployError):
                nodes.remove()
            raise
    for line in render_verdict(deployed, report):
        log.step(line)
    return deployed


def render_verdict(deployed: Deployed, report: Report) -> list[str]:
    """Returns the verdict as lines of two tables: steps with their times, nodes with their ranks."""
    steps = [(step, results, f"{seconds:.1f}") for step, results, seconds in report.rows]
    nodes = [(node.node, node.container, " ".join(map(str, node.ranks))) for node in deployed.nodes]
    tables = format_boxes(("step", "found", "seconds"), steps) + format_boxes(("node", "container", "ranks"), nodes)
    title = f"cluster {deployed.cluster}, executor {deployed.executor}, image {deployed.digest}"
    answer = f"serves {deployed.model} at {deployed.endpoint}: {deployed.prompt!r} → {deployed.text!r}"
    return [title, *tables, answer]


def check_model_listed(nodes: Nodes, port: int, serve: Serve, report: Report, logs: Path, log: Log) -> None:
    """Does the step MODEL: checks that the service lists the model. Raises DeployError."""
    with report.step(Step.MODEL, log) as results, _explained(Step.MODEL, nodes, logs):
        models = service_api.list_models(port, serve)
        if serve.name not in models:
            raise DeployError(Step.MODEL, f"/v1/models lists {models}, not {serve.name}", None, logs)
        results.append(serve.name)


def complete(nodes: Nodes, port: int, serve: Serve, logs: Path, log: Log) -> Completion:
    """Returns a completion, and shows progress while the service computes it. Raises DeployError, Cancelled."""
    pool = ThreadPoolExecutor(1)
    try:
        with _explained(Step.COMPLETION, nodes, logs):
            future = pool.submit(service_api.complete, port, serve, timeout_s=COMPLETION_TIMEOUT_S)
            wait_until(
                future.done,
                timeout_s=2 * COMPLETION_TIMEOUT_S,
                interval_s=0.2,
                log=log,
                title="completion",
                usual_s=USUAL_COMPLETION_S,
            )
            return future.result(timeout=0)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _serving_port(nodes: Nodes) -> int | None:
    """Returns the port on which the cluster serves, if every container is as planned and /health says 200.

    The secrets are looked at last: they are the only part that is fetched.
    """
    states = [nodes.state(plan) for plan in nodes.plans]
    if any(difference(plan, state) for plan, state in zip(nodes.plans, states, strict=True)):
        return None
    if not all(nodes.holds_secrets(plan) for plan in nodes.plans):
        return None
    port = states[0].published if states[0] else None
    return port if port is not None and service_api.is_healthy(port) else None


def _start(nodes: Nodes, cluster: Cluster, report: Report, logs: Path, log: Log) -> int:
    """Starts everything; returns the published port. Starts a second time if the cause of a failure may pass."""
    for attempt in range(1, ATTEMPTS + 1):
        start = ClusterStart(nodes, cluster, report, logs, log)
        try:
            return start.run()
        except StepFailedError as failure:
            start.collect_logs()
            nodes.remove()
            if not failure.again or attempt == ATTEMPTS:
                raise DeployError(failure.step, str(failure), failure.cause, logs) from failure
            log.line(f"{failure.cause.explanation if failure.cause else failure}: trying again")
        except BaseException:
            start.collect_logs()
            nodes.remove()
            raise
    raise AssertionError("unreachable")


def _judged_completion(
    nodes: Nodes, serve: Serve, port: int, reference: Completion | None, report: Report, logs: Path, log: Log
) -> Completion:
    """Does the steps COMPLETION and VERDICT. Raises DeployError, Cancelled."""
    with report.step(Step.COMPLETION, log) as results:
        completion = complete(nodes, port, serve, logs, log)
        results.append(repr(completion.text))
    if reference is not None:
        with report.step(Step.VERDICT, log) as results:
            differences = service_api.differences(completion, reference)
            if differences:
                raise DeployError(Step.VERDICT, "; ".join(differences), causes.WRONG_ANSWER, logs)
            tolerance = service_api.largest_difference(completion, reference)
            results.append(f"{len(completion.tokens)} tokens as on one rank, within {tolerance:.1e}")
    return completion


@contextmanager
def _explained(step: Step, nodes: Nodes, logs: Path) -> Iterator[None]:
    """Turns a failure of the service into DeployError, with the cause that the nodes' log files tell of."""
    try:
        yield
    except (ServiceError, TimeoutError) as error:
        raise DeployError(step, str(error), diagnose_files(nodes.plans, logs), logs) from error


def _deployed(nodes: Nodes, cluster: Cluster, port: int, completion: Completion) -> Deployed:
    plans = nodes.plans
    deployed = [
        DeployedNode(plan.node, plan.endpoint, plan.container, nodes.labels(plan), list(plan.ranks)) for plan in plans
    ]
    return Deployed(
        cluster=plans[0].cluster,
        digest=plans[0].digest,
        executor=cluster.executor,
        endpoint=f"http://127.0.0.1:{port}/v1",
        model=cluster.serve.name,
        nodes=deployed,
        prompt=service_api.PROMPT,
        text=completion.text,
        tokens=completion.tokens,
    )


def _architecture(endpoint: str) -> str:
    """Returns the architecture of an engine's machine, as platforms name it."""
    if endpoint == "local":
        info = engine.get(endpoint, "/info")
    else:
        with engine.session(endpoint) as client:
            info = client.info()
    return platforms.architecture_of(str(info["Architecture"]))
