"""Check `consistency`: the installed distributions fit together, and their deciding files are as they were installed.

Requirements are compared as `pip check` does. The files that decide which models are known are compared with the
hashes in their distributions' RECORD. On a base image, only a fault that is new is a fault.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.core.names import normalised_name
from pipeline.foreign.facts import InstalledDistribution
from pipeline.foreign.pip_check import find_conflicts, new_conflicts
from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.probe import Answers, judge_crashes
from pipeline.smoke.verdict import CheckOutcome, Verdict

NAME = "consistency"
REQUIREMENTS = "requirements"
"""The probe's question for the Python version, and every distribution with its requirements and extras."""
CHANGED = "changed"
"""The probe's question for deciding files that differ from their RECORD: name, version, path, whether it exists."""
QUESTIONS = (REQUIREMENTS, CHANGED)
PATCHED = "the other files of this version may not fit it, and no lock knows of it; use a version that has the change"
REMEDY = "pip accepts that, and it fails at run time; let `lock` choose both, or remove what replaced one of them"


def judge(expected: Expectations, answers: Answers) -> Verdict:
    """Names every requirement that is not met and every changed file; those of the base image are only listed."""
    if crash := judge_crashes(NAME, answers, QUESTIONS):
        return crash
    faults = [f"{NAME} cannot be judged: {answers[asked].error}" for asked in QUESTIONS if answers[asked].error]
    of_base: list[str] = []
    count = 0
    if not answers[REQUIREMENTS].error:
        count = len(answers[REQUIREMENTS].value["distributions"])
        before, after = _unmet_requirements(expected, answers[REQUIREMENTS].value)
        faults += [f"{line}: {REMEDY}" for line in new_conflicts(before, after)]
        of_base += before
    if not answers[CHANGED].error:
        for is_base, line in _changed_files(expected, answers[CHANGED].value):
            (of_base if is_base else faults).append(line)
    if faults:
        return Verdict(NAME, CheckOutcome.FAILED, tuple(faults))
    summary = f"the requirements of {count} distributions are met, and their files are as they were installed"
    return Verdict(NAME, CheckOutcome.OK, (summary, *(f"as the base image came: {line}" for line in of_base)))


CHECK = Check(name=NAME, judge=judge, questions=lambda _image: QUESTIONS)


def _unmet_requirements(expected: Expectations, installed: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the conflicts in the base image alone, and those about the whole image."""
    distributions = [
        InstalledDistribution(
            name=normalised_name(name), version=version, place=place, requires=tuple(requires), extras=tuple(extras)
        )
        for name, version, place, requires, extras in installed["distributions"]
    ]
    of_base = [distribution for distribution in distributions if distribution.name in expected.inherited]
    python, platform = installed["python"], expected.image.platform
    requested = expected.image.python.requirements
    return (
        find_conflicts(of_base, python=python, platform=platform),
        find_conflicts(distributions, python=python, platform=platform, asked=requested),
    )


def _changed_files(expected: Expectations, rows: Sequence[tuple[str, str, str, bool]]) -> Iterator[tuple[bool, str]]:
    """Yields for each changed file whether the base image came with it so, and a line about it."""
    overlay = expected.overlay
    for name, version, path, exists in rows:
        ours = overlay is not None and (overlay / path.lstrip("/")).exists()
        is_base = normalised_name(name) in expected.inherited and not ours
        difference = f"differs from what {name} {version} installed" if exists else f"of {name} {version} is gone"
        yield is_base, f"patched: {path} {difference}: {PATCHED}"
