"""Check `imports`: Python imports the modules that image.yaml names."""

from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.probe import Answers, judge_crashes
from pipeline.smoke.verdict import Verdict, verdict_of

NAME = "imports"


def question(module: str) -> str:
    """Returns the probe's question for the import of a module; its answer has `version` and `real` (the file)."""
    return f"import:{module}"


def judge(expected: Expectations, answers: Answers) -> Verdict:
    """Names every module that is not imported, with Python's error."""
    modules = expected.image.smoke.imports
    if crash := judge_crashes(NAME, answers, map(question, modules)):
        return crash
    errors = {module: answers[question(module)].error for module in modules}
    if any(errors.values()):
        return verdict_of(NAME, [f"import {module}: {error}" for module, error in errors.items() if error], "")
    versions = {module: answers[question(module)].value["version"] for module in modules}
    return verdict_of(NAME, [], ", ".join(f"{module} {version}".strip() for module, version in versions.items()))


CHECK = Check(
    name=NAME,
    judge=judge,
    asked=lambda image: bool(image.smoke.imports),
    questions=lambda image: tuple(map(question, image.smoke.imports)),
)
