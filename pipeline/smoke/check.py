"""What a smoke check is. `smoke.CHECKS` lists all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.models import Image
from pipeline.core.log import Log
from pipeline.smoke.containers import ContainerFactory
from pipeline.smoke.probe import Answers, ProbeAnswer
from pipeline.smoke.verdict import Verdict

Experiment = Callable[[ContainerFactory, Log], ProbeAnswer]
"""Finds something out in containers of its own. May raise ContainerError, which becomes the answer's error."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """What an image has to hold. Distributions are normalised names with their versions."""

    image: Image
    """Its image.yaml."""
    locked: Mapping[str, str]
    """Every distribution of the lock."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Every distribution whose source lies beside image.yaml."""
    inherited: frozenset[str] = frozenset()
    """The names of the locked distributions that the base image brought."""
    overlay: Path | None = None
    """The folder that is laid over the root filesystem."""


def _nothing(_image: Image) -> Sequence[str]:
    return ()


def _no_files(_image: Image, _folder: Path) -> Mapping[str, bytes]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One smoke check: when it runs, what it has to know, and how it judges that."""

    name: str
    """Its name in reports and tables."""
    judge: Callable[[Expectations, Answers], Verdict]
    """Judges the image by the answers to `questions` and to `experiments`, which all are there."""
    asked: Callable[[Image], bool] = lambda _image: True
    """Tells whether image.yaml asks for the check."""
    questions: Callable[[Image], Sequence[str]] = _nothing
    """Questions for the Python probe (see QUESTIONS in probes/python_facts.py). Checks may share questions."""
    experiments: Mapping[str, Experiment] = field(default_factory=dict)
    """Experiments, by the name under which `judge` finds their answers."""
    files: Callable[[Image, Path], Mapping[str, bytes]] = _no_files
    """Files for the probe's container by path below PROBE_FOLDER, read from the image's own folder.

    Called before any container starts; raises ConfigError.
    """
