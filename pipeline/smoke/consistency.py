"""Check `consistency`: whether what is installed fits together, and is what was installed.

What every distribution wants against what is there, as `pip check` means it; and the files that decide which models
are known, against the hashes that their distributions came with. On another image, only what is new there is a fault.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.models import Image
from pipeline.core.names import normalised_name
from pipeline.foreign.facts import InstalledDistribution
from pipeline.foreign.pip_check import find_conflicts, new_conflicts
from pipeline.smoke.probe import Answer, crashed
from pipeline.smoke.verdict import Outcome, Verdict

NAME = "consistency"
REQUIREMENTS = "requirements"
CHANGED = "changed"
QUESTIONS = (REQUIREMENTS, CHANGED)
PATCHED = "beside the files of its version that one fits nothing, and no lock knows of it; use a version that has it"
REMEDY = "pip lets that pass and it fails when it runs; let `lock` choose both, or take away what replaced one of them"


def verdict(image: Image, inside: Collection[str], overlay: Path | None, answers: Mapping[str, Answer]) -> Verdict:
    """The verdict; `inside` names (normalised) what the image below brought, `overlay` is image.yaml's own files."""
    if verdict := crashed(NAME, answers, QUESTIONS):
        return verdict
    faults = [f"{NAME} cannot be judged: {answers[asked].error}" for asked in QUESTIONS if answers[asked].error]
    came: list[str] = []
    count = 0
    if not answers[REQUIREMENTS].error:
        count = len(answers[REQUIREMENTS].value["distributions"])
        before, after = _complaints(image, inside, answers[REQUIREMENTS].value)
        faults += [f"{line}: {REMEDY}" for line in new_conflicts(before, after)]
        came += before
    if not answers[CHANGED].error:
        for ours, line in _changed(inside, overlay, answers[CHANGED].value):
            (faults if ours else came).append(line)
    if faults:
        return Verdict(NAME, Outcome.FAILED, tuple(faults))
    found = f"what {count} distributions want is there, and they are as they were installed"
    return Verdict(NAME, Outcome.OK, (found, *(f"as the image below came: {line}" for line in came)))


def _complaints(image: Image, inside: Collection[str], said: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """What is inconsistent in the image below on its own, and in all of it."""
    there = [
        InstalledDistribution(
            name=normalised_name(name), version=version, place=place, requires=tuple(requires), extras=tuple(extras)
        )
        for name, version, place, requires, extras in said["distributions"]
    ]
    below = [found for found in there if found.name in inside]
    python, platform = said["python"], image.platform
    return (
        find_conflicts(below, python=python, platform=platform),
        find_conflicts(there, python=python, platform=platform, asked=image.python.requirements),
    )


def _changed(
    inside: Collection[str], overlay: Path | None, said: Sequence[tuple[str, str, str, bool]]
) -> Iterator[tuple[bool, str]]:
    """Whether it is our doing, and the words, for each file that is not as its distribution installed it."""
    for name, version, path, there in said:
        ours = normalised_name(name) not in inside or (overlay is not None and (overlay / path.lstrip("/")).exists())
        what = f"is not what {name} {version} installed" if there else f"is gone, and {name} {version} installed it"
        yield ours, f"patched: {path} {what}: {PATCHED}"
