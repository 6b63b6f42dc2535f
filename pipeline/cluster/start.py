"""From nothing to an engine that says it is healthy: the steps of a deploy that start things.

Every wait watches every container, so that what dies fails at once. Lines go to one log file a node as they come.
"""

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pipeline.cluster import causes, completion
from pipeline.cluster.nodes import Nodes, unpack
from pipeline.cluster.plan import INSIDE, Plan
from pipeline.cluster.preflight import Refused, preflight
from pipeline.config.launcher_contract import MASTER_PORT
from pipeline.config.models import Cluster, Serve
from pipeline.core import http_client, procs
from pipeline.core.errors import Cancelled
from pipeline.core.log import Log

RAY_WITHIN = 600.0
RAY_UP = "tandem: ray is up"
RAY_LOGS = "/tmp/ray/session_latest/logs"
FABRIC_PORT = MASTER_PORT + 1
ASSIGNED_RANK = re.compile(r"rank (\d+) in world size (\d+) is assigned")
USUAL = {"ray": 60.0, "engine": 240.0}
EVERY = 1.0
Step = Callable[[str, Log], AbstractContextManager[list[str]]]


class Failure(Exception):
    """A step that did not succeed, and the cause that the logs tell of."""

    def __init__(self, step: str, said: str, cause: causes.Cause | None = None) -> None:
        super().__init__(said)
        self.step = step
        self.cause = cause


class BringUp:
    """One attempt at starting a cluster."""

    def __init__(self, nodes: Nodes, cluster: Cluster, step: Step, logs: Path, log: Log) -> None:
        self._nodes = nodes
        self._plans = nodes.plans
        self._cluster = cluster
        self._step = step
        self._logs = logs
        self._log = log
        self._lines: dict[str, list[str]] = {plan.node: [] for plan in self._plans}
        self._newest = ""
        self._writing = threading.Lock()

    def run(self) -> int:
        """All steps until /health says 200; the port on this machine's loopback. Raises Failure, Cancelled."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for plan in self._plans:
            self._file(plan.node).write_text("")
        removed = self._nodes.remove()
        if removed:
            self._log.line(f"removed {', '.join(removed)}")
        with self._step("image", self._log) as found:
            self._nodes.pull(self._log)
            found.append(f"{self._plans[0].digest} on {len(self._plans)} nodes")
        with self._step("preflight", self._log) as found:
            found += [self._preflight(plan) for plan in self._plans]
        with self._step("containers", self._log) as found:
            self._nodes.create(secrets.token_hex(32))
            found += [plan.container for plan in self._plans]
        self._start_nodes()
        pool = ThreadPoolExecutor(len(self._plans))
        try:
            # The engine's first minute is one process's imports: the other cores check the fabric meanwhile.
            checks = self._checks(pool)
            self._release()
            self._join(checks)
            port = self._engine()
        finally:
            # Not waited for: what still runs in a container ends with it.
            pool.shutdown(wait=False, cancel_futures=True)
        self._ranks()
        return port

    def collect(self) -> None:
        """Put what Ray wrote inside the nodes beside their logs."""
        for plan in self._plans:
            tar = self._nodes.fetch(plan, f"{RAY_LOGS}/.") if plan.ray else None
            if tar is None:
                continue
            folder = self._logs / f"{plan.node}-ray"
            unpack(tar, folder)
            for file in folder.glob("*"):
                said = file.read_text("latin-1")
                if (hidden := self._hidden(said)) != said:
                    file.write_text(hidden, "latin-1")

    @staticmethod
    def healthy(port: int) -> bool:
        """Whether /health says 200."""
        try:
            return http_client.ask(("127.0.0.1", port), "/health", within=5).status == 200
        except (OSError, ValueError):
            return False

    @staticmethod
    def models(port: int, serve: Serve, within: float = 60) -> list[str]:
        """The models that the service lists. Raises Failure, of the step `model`, if it does not."""
        try:
            answer = http_client.ask(
                ("127.0.0.1", port), "/v1/models", headers=completion.authorization(serve), within=within
            )
        except (OSError, ValueError) as error:
            raise Failure("model", f"/v1/models is not answered: {error}") from error
        said = completion.hidden(answer.body.decode(errors="replace"), serve)[:500]
        if answer.status == HTTPStatus.UNAUTHORIZED:
            said += "; it wants an API key that neither serve.args (--api-key) nor serve.env (VLLM_API_KEY) gives"
        if answer.status != HTTPStatus.OK:
            raise Failure("model", f"the service answers {answer.status} to /v1/models: {said}")
        try:
            return [str(entry["id"]) for entry in answer.json()["data"]]
        except (ValueError, LookupError, TypeError) as error:
            raise Failure("model", f"/v1/models lists no models: {said}") from error

    def _preflight(self, plan: Plan) -> str:
        side_by_side = sum(other.endpoint == plan.endpoint for other in self._plans)
        try:
            return f"{plan.node}: {preflight(self._nodes, plan, side_by_side)}"
        except Refused as refused:
            raise Failure("preflight", f"{plan.node}: {refused}", causes.named(refused.cause)) from refused

    def _start_nodes(self) -> None:
        """Start the containers; with Ray the head first, as the others would only knock in vain."""
        if self._plans[0].ray is None:
            for plan in self._plans:
                self._start(plan)
            return
        with self._step("cluster", self._log) as found:
            head, *others = self._plans
            self._start(head)
            self._wait("cluster", "Ray's head", lambda: self._said(head, RAY_UP), RAY_WITHIN, USUAL["ray"])
            for plan in others:
                self._start(plan)
            joined: Callable[[], bool] = lambda: all(self._said(plan, RAY_UP) for plan in others)  # noqa: E731
            self._wait("cluster", f"{len(others)} more nodes", joined, RAY_WITHIN, USUAL["ray"])
            found.append(f"{len(self._plans)} nodes")

    def _start(self, plan: Plan) -> None:
        self._nodes.start(plan)
        self._nodes.listen(plan, self._heard)

    def _release(self) -> None:
        for plan in self._plans:
            if plan.serve is not None:
                self._nodes.release(plan)

    def _checks(self, pool: ThreadPoolExecutor) -> list[tuple[Plan, Future[tuple[int, str]]]]:
        if len(self._plans) < 2:
            return []
        head, world = self._plans[0].container, str(len(self._plans))
        argv = ["python3", f"{INSIDE}/serve_fabric.py"]
        ranks = enumerate(self._plans)
        return [
            (plan, pool.submit(self._nodes.run, plan, [*argv, str(rank), world, head, str(FABRIC_PORT), "gloo"]))
            for rank, plan in ranks
        ]

    def _join(self, checks: Sequence[tuple[Plan, Future[tuple[int, str]]]]) -> None:
        if not checks:
            return
        with self._step("fabric", self._log) as found:
            done: Callable[[], bool] = lambda: all(future.done() for _, future in checks)  # noqa: E731
            self._wait("fabric", "a collective over all nodes", done, RAY_WITHIN, USUAL["ray"])
            for plan, future in checks:
                status, said = future.result()
                answer = fabric_answer(said)
                if status != 0 or answer is None:
                    self._watch("fabric")  # a node that is gone is the better reason
                    raise Failure("fabric", f"{plan.node}: {causes.last_words(said, 3)}", causes.diagnose([said]))
                if not answer["right"]:
                    raise Failure("fabric", f"{plan.node}: the sum over all nodes is wrong")
                found.append(f"{plan.node} {answer['mib_per_s']} MiB/s")

    def _engine(self) -> int:
        with self._step("engine", self._log) as found:
            self._watch("engine")
            there = self._nodes.found(self._plans[0])
            if there is None or there.published is None:
                raise Failure("engine", f"{self._plans[0].container} publishes no port")
            port = there.published
            ready: Callable[[], bool] = lambda: self.healthy(port)  # noqa: E731
            self._wait("engine", "engine", ready, self._cluster.serve.within, USUAL["engine"])
            found.append(f"http://127.0.0.1:{port}/health says 200")
        return port

    def _ranks(self) -> None:
        """See on each node, in its own log, that its ranks of the one world live there."""
        world = sum(plan.accelerators for plan in self._plans)
        if world < 2:
            return
        with self._step("ranks", self._log) as found:
            for plan in self._plans:
                ranks = assigned(self._worker_log(plan), world)
                if ranks != plan.ranks:
                    raise Failure("ranks", f"{plan.node} holds the ranks {list(ranks)}, not {list(plan.ranks)}")
                found.append(f"{plan.node}: rank {' '.join(map(str, ranks))} of {world}")

    def _worker_log(self, plan: Plan) -> str:
        if plan.ray is None:
            return self._text(plan)
        tar = self._nodes.fetch(plan, f"{RAY_LOGS}/.") or b""
        return tar.decode("latin-1")

    def _wait(self, step: str, what: str, ready: Callable[[], bool], within: float, usual: float) -> None:
        """Until it is ready. Raises Failure when a container ends or the time is up, Cancelled."""
        start = time.monotonic()
        while not ready():
            if procs.cancelled():
                raise Cancelled("interrupted")
            self._watch(step)
            passed = time.monotonic() - start
            if passed > within:
                raise Failure(step, f"{what}: not ready within {within:g} s", self._diagnose())
            self._log.progress(f"{what} {self._newest}".rstrip(), passed, usual, "s")
            time.sleep(EVERY)

    def _watch(self, step: str) -> None:
        for plan in self._plans:
            there = self._nodes.found(plan)
            if there is None:
                raise Failure(step, f"{plan.container} is gone")
            if there.status not in ("created", "running"):
                time.sleep(EVERY)  # its last lines are still on their way
                cause = self._diagnose(oom_killed=there.oom_killed, exit_code=there.exit_code)
                said = self._hidden(causes.last_words(self._text(plan)))
                raise Failure(step, f"{plan.container} ended with status {there.exit_code}:\n{said}", cause)

    def _diagnose(self, *, oom_killed: bool = False, exit_code: int = 0) -> causes.Cause | None:
        logs = [self._text(plan) for plan in self._plans]
        return causes.diagnose(logs, oom_killed=oom_killed, exit_code=exit_code)

    def _heard(self, node: str, line: str) -> None:
        with self._writing:
            self._lines[node].append(line)
            shown = self._hidden(line)
            with self._file(node).open("a", encoding="utf-8") as file:
                file.write(shown + "\n")
        self._log.line(f"[{node}] {shown}")
        self._newest = short(shown)

    def _hidden(self, text: str) -> str:
        return completion.hidden(text, self._cluster.serve)

    def _file(self, node: str) -> Path:
        return self._logs / f"{node}.log"

    def _said(self, plan: Plan, words: str) -> bool:
        return words in self._text(plan)

    def _text(self, plan: Plan) -> str:
        with self._writing:
            return "\n".join(self._lines[plan.node])


def short(line: str, width: int = 60) -> str:
    """What a progress line has room for: the message without time stamps and process names."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", line)
    said = re.sub(r"^(\([^)]*\) )*", "", said)
    said = re.sub(r"^(INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[\S+\] ", "", said).strip()
    return said if len(said) <= width else said[: width - 1] + "…"


def fabric_answer(said: str) -> dict[str, Any] | None:
    """The JSON that the fabric probe printed, if it did."""
    for line in said.splitlines():
        if line.startswith("TANDEM "):
            answer: dict[str, Any] = json.loads(line.removeprefix("TANDEM "))
            return answer
    return None


def assigned(log: str, world: int) -> tuple[int, ...]:
    """The ranks of a world of that size that a node's own log says were assigned on it."""
    return tuple(sorted({int(rank) for rank, size in ASSIGNED_RANK.findall(log) if int(size) == world}))
