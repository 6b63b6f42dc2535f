"""Check `registry`: whether vLLM's registry lists and loads the architectures that image.yaml wants; if not, why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.smoke.probe import Answer, crashed
from pipeline.smoke.verdict import Verdict, judge

NAME = "registry"
# The first release whose registry has them, by how their names begin (princeton-ddss/blackfish#322).
SINCE = {"Qwen3_5": (0, 17)}


def question(architecture: str) -> str:
    """What the probe is asked about an architecture."""
    return f"{NAME}:{architecture}"


def verdict(architectures: Sequence[str], answers: Mapping[str, Answer], vllm: str) -> Verdict:
    """The verdict; `vllm` is the version that the image has, as its metadata says it ("" for none)."""
    if verdict := crashed(NAME, answers, [question(name) for name in architectures]):
        return verdict
    faults = list(_faults({name: answers[question(name)] for name in architectures}, vllm))
    return judge(NAME, faults, f"listed and loaded: {', '.join(architectures)}")


def _faults(answers: Mapping[str, Answer], vllm: str) -> Iterator[str]:
    unknown = []
    for name, answer in answers.items():
        said = answer.value
        if answer.error:
            yield f"{name}: vLLM's registry cannot be asked: {answer.error}"
        elif "fails" in said:
            yield f"{name} is listed by vLLM's registry, but its class does not load: {said['fails']}"
        elif said["listed"]:
            continue
        elif said["main"]:
            yield _without_heads(name, said, vllm)
        elif said["files"]:
            yield (
                f"{name} is not registered, although {', '.join(said['files'])} defines it: {_looks(said)}, and a file"
                f" that nobody registered there is not a model; {_remedy([name], vllm)}"
            )
        else:
            unknown.append(name)
    if unknown:
        yield (
            f"{_none_of(unknown, all_of_them=len(unknown) == len(answers))}, and no file of vLLM defines it:"
            f" {_looks(answers[unknown[0]].value)}; {_remedy(unknown, vllm)}"
        )


def _without_heads(name: str, said: Mapping[str, Any], vllm: str) -> str:
    there = f", although {', '.join(said['files'])} defines it" if said["files"] else ""
    return (
        f"{name} is not registered{there}; {', '.join(said['main'])} is: the model itself can be served, but"
        f" speculative decoding with its MTP heads will not work: {_looks(said)}; {_remedy([name], vllm)}, or take"
        f" {name} out of smoke.architectures if nobody will ask for it"
    )


def _none_of(names: Sequence[str], *, all_of_them: bool) -> str:
    if len(names) == 1:
        return f"{names[0]} is not registered"
    listed = ", ".join(names)
    return f"none of the wanted {listed} is registered" if all_of_them else f"not registered: {listed}"


def _looks(said: Mapping[str, Any]) -> str:
    return (
        f"vLLM looks in {said['looks_in']}, a dictionary from architecture names to modules ({said['known']} entries)"
    )


def _remedy(names: Sequence[str], vllm: str) -> str:
    """What to use instead, with the versions as far as they are known."""
    since = max((first for begins, first in SINCE.items() if any(n.startswith(begins) for n in names)), default=None)
    has = f"this image has vLLM {vllm}" if vllm else "this image has no metadata of vLLM"
    other = "an image that has one below ours (`base: {image: …}`)"
    if since is None or _reaches(vllm, since):
        return f"{has}: use a vLLM that lists it, or {other}"
    first = ".".join(map(str, since))
    older = ", which is older than the model" if vllm else ""
    return f"{has}{older}: use vLLM {first} or later, the first that lists it, or {other}"


def _reaches(version: str, release: tuple[int, int]) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release[:2] >= release
    except InvalidVersion:
        return False
