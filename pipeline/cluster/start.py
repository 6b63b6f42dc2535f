"""Starts a cluster, up to the step in which its engine says that it is healthy.

Every wait watches every container, so that the step fails as soon as one of them ends.
"""

import re
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from pipeline.cluster import causes, service_api
from pipeline.cluster.node_logs import NodeLogs
from pipeline.cluster.nodes import Nodes, unpack_tar
from pipeline.cluster.plan import TANDEM_FOLDER, NodePlan
from pipeline.cluster.preflight import UnfitNodeError, check_node
from pipeline.cluster.probe_output import find_answer
from pipeline.cluster.steps import Report, Step, StepFailedError
from pipeline.config.launcher_contract import MASTER_PORT
from pipeline.config.models import Cluster
from pipeline.core.log import Log
from pipeline.core.waiting import wait_until

RAY_TIMEOUT_S = 600.0
FABRIC_TIMEOUT_S = 600.0

RAY_IS_UP = "tandem: ray is up"
"""The line that serve_node.py writes once Ray runs on the node."""
RAY_LOGS = "/tmp/ray/session_latest/logs"
FABRIC_PORT = MASTER_PORT + 1
ASSIGNED_RANK = re.compile(r"rank (\d+) in world size (\d+) is assigned")
USUAL_RAY_S = 60.0
USUAL_ENGINE_S = 240.0
LAST_LINES_S = 1.0
"""The time that a container's last lines may take to arrive."""
FabricCheck = tuple[NodePlan, Future[tuple[int, str]]]
"""A node, and the exit status and output of the fabric probe on it."""


class ClusterStart:
    """One attempt to start a cluster."""

    def __init__(self, nodes: Nodes, cluster: Cluster, report: Report, logs: Path, log: Log) -> None:
        self._nodes = nodes
        self._plans = nodes.plans
        self._cluster = cluster
        self._report = report
        self._folder = logs
        self._log = log
        self._output = NodeLogs(self._plans, cluster.serve, logs, log)

    def run(self) -> int:
        """Does all steps up to RANKS; returns the service's port on this machine's loopback.

        Raises StepFailedError, Cancelled.
        """
        self._output.start()
        removed = self._nodes.remove()
        if removed:
            self._log.line(f"removed {', '.join(removed)}")
        with self._step(Step.IMAGE) as results:
            self._nodes.pull_image(self._log)
            results.append(f"{self._plans[0].digest} on {len(self._plans)} nodes")
        with self._step(Step.PREFLIGHT) as results:
            results += [self._check_node(plan) for plan in self._plans]
        with self._step(Step.CONTAINERS) as results:
            self._nodes.create_containers(secrets.token_hex(32))
            results += [plan.container for plan in self._plans]
        self._start_containers()
        pool = ThreadPoolExecutor(len(self._plans))
        try:
            # The engine imports in one process for its first minute: the other cores check the fabric meanwhile.
            checks = self._start_fabric_checks(pool)
            self._start_engines()
            self._await_fabric(checks)
            port = self._await_engine()
        finally:
            # Not awaited: what still runs in a container ends with it.
            pool.shutdown(wait=False, cancel_futures=True)
        self._check_ranks()
        return port

    def collect_logs(self) -> None:
        """Copies what Ray wrote inside the nodes into folders beside their logs."""
        for plan in self._plans:
            tar = self._nodes.fetch_tar(plan, f"{RAY_LOGS}/.") if plan.ray else None
            if tar is not None:
                folder = self._folder / f"{plan.node}-ray"
                unpack_tar(tar, folder)
                self._output.hide_keys_in(folder)

    def _step(self, step: Step) -> AbstractContextManager[list[str]]:
        return self._report.step(step, self._log)

    def _check_node(self, plan: NodePlan) -> str:
        nodes_on_machine = sum(other.endpoint == plan.endpoint for other in self._plans)
        try:
            return f"{plan.node}: {check_node(self._nodes, plan, nodes_on_machine)}"
        except UnfitNodeError as error:
            raise StepFailedError(Step.PREFLIGHT, f"{plan.node}: {error}", causes.cause_named(error.cause)) from error

    def _start_containers(self) -> None:
        """Starts the containers. With Ray the head comes first, since the others could not join before it is up."""
        head, *others = self._plans
        if head.ray is None:
            for plan in self._plans:
                self._start_container(plan)
            return
        with self._step(Step.CLUSTER) as results:
            self._start_container(head)
            self._await_ray("Ray's head", [head])
            for plan in others:
                self._start_container(plan)
            self._await_ray("the other nodes", others)
            results.append(f"{len(self._plans)} nodes")

    def _start_container(self, plan: NodePlan) -> None:
        self._nodes.start_container(plan)
        self._nodes.follow_output(plan, self._output.add)

    def _await_ray(self, title: str, plans: Sequence[NodePlan]) -> None:
        def is_up() -> bool:
            return all(RAY_IS_UP in self._output.text(plan.node) for plan in plans)

        self._wait(Step.CLUSTER, title, is_up, RAY_TIMEOUT_S, USUAL_RAY_S)

    def _start_fabric_checks(self, pool: ThreadPoolExecutor) -> list[FabricCheck]:
        if len(self._plans) < 2:
            return []
        head, world = self._plans[0].container, str(len(self._plans))
        argv = ["python3", f"{TANDEM_FOLDER}/serve_fabric.py"]
        return [
            (plan, pool.submit(self._nodes.run, plan, [*argv, str(rank), world, head, str(FABRIC_PORT), "gloo"]))
            for rank, plan in enumerate(self._plans)
        ]

    def _start_engines(self) -> None:
        for plan in self._plans:
            if plan.serve is not None:
                self._nodes.start_engine(plan)

    def _await_fabric(self, checks: Sequence[FabricCheck]) -> None:
        if not checks:
            return
        with self._step(Step.FABRIC) as results:

            def are_done() -> bool:
                return all(future.done() for _, future in checks)

            self._wait(Step.FABRIC, "a collective over all nodes", are_done, FABRIC_TIMEOUT_S, USUAL_RAY_S)
            for plan, future in checks:
                status, output = future.result()
                answer = find_answer(output)
                if status != 0 or answer is None:
                    self._refuse_ended_containers(Step.FABRIC)  # a node that ended is the better reason
                    message = f"{plan.node}: {causes.last_words(output, 3)}"
                    raise StepFailedError(Step.FABRIC, message, causes.diagnose([output]))
                if not answer["right"]:
                    raise StepFailedError(Step.FABRIC, f"{plan.node}: the sum over all nodes is wrong")
                results.append(f"{plan.node} {answer['mib_per_s']} MiB/s")

    def _await_engine(self) -> int:
        with self._step(Step.ENGINE) as results:
            self._refuse_ended_containers(Step.ENGINE)
            head = self._nodes.state(self._plans[0])
            if head is None or head.published is None:
                raise StepFailedError(Step.ENGINE, f"{self._plans[0].container} publishes no port")
            port, timeout_s = head.published, self._cluster.serve.within
            self._wait(Step.ENGINE, "engine", lambda: service_api.is_healthy(port), timeout_s, USUAL_ENGINE_S)
            results.append(f"http://127.0.0.1:{port}/health says 200")
        return port

    def _check_ranks(self) -> None:
        """Checks, in each node's own log, that its ranks of the one world live there."""
        world = sum(plan.accelerators for plan in self._plans)
        if world < 2:
            return
        with self._step(Step.RANKS) as results:
            for plan in self._plans:
                ranks = assigned_ranks(self._worker_log(plan), world)
                if ranks != plan.ranks:
                    message = f"{plan.node} holds the ranks {list(ranks)}, not {list(plan.ranks)}"
                    raise StepFailedError(Step.RANKS, message)
                results.append(f"{plan.node}: rank {' '.join(map(str, ranks))} of {world}")

    def _worker_log(self, plan: NodePlan) -> str:
        if plan.ray is None:
            return self._output.text(plan.node)
        tar = self._nodes.fetch_tar(plan, f"{RAY_LOGS}/.") or b""
        return tar.decode("latin-1")

    def _wait(self, step: Step, title: str, ready: Callable[[], bool], timeout_s: float, usual_s: float) -> None:
        """Waits until `ready`. Raises StepFailedError when a container ends or the time is up, Cancelled."""

        def is_ready() -> bool:
            if ready():
                return True
            self._refuse_ended_containers(step)
            return False

        def progress() -> str:
            return f"{title} {self._output.newest}".rstrip()

        if not wait_until(is_ready, timeout_s=timeout_s, log=self._log, title=progress, usual_s=usual_s):
            raise StepFailedError(step, f"{title}: not ready within {timeout_s:g} s", self._output.diagnose())

    def _refuse_ended_containers(self, step: Step) -> None:
        for plan in self._plans:
            state = self._nodes.state(plan)
            if state is None:
                raise StepFailedError(step, f"{plan.container} is gone")
            if state.status not in ("created", "running"):
                time.sleep(LAST_LINES_S)
                cause = self._output.diagnose(oom_killed=state.oom_killed, exit_code=state.exit_code)
                ended = f"{plan.container} ended with status {state.exit_code}"
                raise StepFailedError(step, f"{ended}:\n{self._output.last_words(plan.node)}", cause)


def assigned_ranks(log: str, world: int) -> tuple[int, ...]:
    """Returns the ranks of a world of that size that vLLM assigned on a node, by the node's own log."""
    return tuple(sorted({int(rank) for rank, size in ASSIGNED_RANK.findall(log) if int(size) == world}))
