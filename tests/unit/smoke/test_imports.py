"""The verdict on the modules that Python has to import."""

from pipeline.smoke import imports
from pipeline.smoke.probe import ProbeAnswer
from pipeline.smoke.verdict import CheckOutcome, Verdict
from tests.unit.smoke.expected import expected_image

CRASH = ProbeAnswer(error="died", crashed=True)
TORCH = ProbeAnswer({"version": "2.10.0", "real": "/torch/__init__.py"})


def verdict(**answers: ProbeAnswer) -> Verdict:
    expected = expected_image({"imports": tuple(answers)})
    return imports.judge(expected, {f"import:{module}": answer for module, answer in answers.items()})


def test_imported_modules_are_listed_with_their_versions() -> None:
    ray = ProbeAnswer({"version": "", "real": "/ray/__init__.py"})
    assert verdict(torch=TORCH, ray=ray) == Verdict("imports", CheckOutcome.OK, ("torch 2.10.0, ray",))


def test_every_module_that_is_not_imported_is_named() -> None:
    failed = verdict(torch=TORCH, ray=ProbeAnswer(error="ImportError: no ray"), vllm=ProbeAnswer(error="OSError: x"))
    assert failed.details == ("import ray: ImportError: no ray", "import vllm: OSError: x")


def test_a_fault_of_the_image_beside_a_crash_is_a_failure() -> None:
    assert verdict(torch=CRASH, ray=ProbeAnswer(error="ImportError: no ray")).outcome is CheckOutcome.FAILED
    assert verdict(torch=CRASH).outcome is CheckOutcome.EMULATOR
