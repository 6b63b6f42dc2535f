"""The steps of a deploy: their names, how one fails, and the report of those that passed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.cluster.causes import Cause
from pipeline.core.attempt_error import AttemptError
from pipeline.core.log import Log


class Step(StrEnum):
    """Every step of a deploy, in order. ClusterStart does the first seven, deploy the others."""

    IMAGE = "image"
    """Every node's engine holds the image under its digest."""
    PREFLIGHT = "preflight"
    """Every node can run its part, as far as a look tells."""
    CONTAINERS = "containers"
    """The containers exist, with our files and the token in them."""
    CLUSTER = "cluster"
    """Ray's head is up, and the other nodes have joined it; without Ray, this step does not exist."""
    FABRIC = "fabric"
    """One collective over all nodes gives the right sum."""
    ENGINE = "engine"
    """/health says 200."""
    RANKS = "ranks"
    """Each node's own log says that its ranks live there."""
    MODEL = "model"
    """/v1/models lists the model."""
    COMPLETION = "completion"
    """The service answers a completion."""
    VERDICT = "verdict"
    """The completion agrees with that of one rank."""


class StepFailedError(AttemptError):
    """A step did not succeed."""

    def __init__(self, step: Step, message: str, cause: Cause | None = None) -> None:
        super().__init__(message, again=cause is not None and cause.may_pass)
        self.step = step
        self.cause = cause
        """The cause that the nodes' logs tell of, if they tell of one."""


@dataclass
class Report:
    """The steps that passed."""

    rows: list[tuple[Step, str, float]] = field(default_factory=list)
    """Step, results and seconds of each."""

    @contextmanager
    def step(self, step: Step, log: Log) -> Iterator[list[str]]:
        """Announces a step; the caller appends its results, as texts, to the list that it gets."""
        log.step(f"{step} …")
        results: list[str] = []
        start = time.monotonic()
        yield results
        seconds = time.monotonic() - start
        self.rows.append((step, "; ".join(results), seconds))
        log.step(f"{step}: {'; '.join(results) or 'done'} ({seconds:.1f} s)")
