"""The verdict on architectures that vLLM's registry does not list, or lists and does not load."""

from typing import Any

import pytest

from pipeline.smoke import architectures
from pipeline.smoke.probe import ProbeAnswer
from pipeline.smoke.verdict import CheckOutcome, Verdict
from tests.unit.smoke.expected import expected_image

MAIN, HEADS = "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeMTP"


def unlisted(*files: str, main: tuple[str, ...] = ()) -> ProbeAnswer:
    return ProbeAnswer(
        {"looks_in": "/v/registry.py", "known": 250, "listed": False, "files": [*files], "main": [*main]}
    )


def listed(**entry: Any) -> ProbeAnswer:
    return ProbeAnswer({"looks_in": "/v/registry.py", "known": 2, "listed": True, **entry})


def registry(answers: dict[str, ProbeAnswer], vllm: str = "0.14.0") -> Verdict:
    expected = expected_image(smoke={"architectures": tuple(answers)})
    by_question = {architectures.question(name): answer for name, answer in answers.items()}
    versions = ProbeAnswer([["vllm", vllm, "/site"]] if vllm else [])
    return architectures.judge(expected, {"versions": versions, **by_question})


def test_a_listed_and_loaded_class_passes() -> None:
    assert registry({"Qwen": listed(loaded="vllm.qwen.Qwen")}) == Verdict(
        "registry", CheckOutcome.OK, ("listed and loaded: Qwen",)
    )


def test_a_file_that_is_not_registered_is_reported_as_exactly_that() -> None:
    (detail,) = registry({MAIN: unlisted("/v/qwen3_5.py")}).details
    assert f"{MAIN} is not registered, although /v/qwen3_5.py defines it" in detail
    assert "vLLM looks in /v/registry.py, a dictionary from architecture names to modules (250 entries)" in detail
    assert "a file that is not registered there is not a model" in detail
    assert "this image has vLLM 0.14.0, which is older than the model: use vLLM 0.17 or later" in detail
    assert "`base: {image: …}`" in detail


def test_an_image_older_than_the_model_is_one_fault_with_both_versions() -> None:
    (detail,) = registry({MAIN: unlisted(), HEADS: unlisted()}, "0.13.0").details
    assert detail.startswith(f"none of the wanted {MAIN}, {HEADS} is registered, and no file of vLLM defines it")
    assert "this image has vLLM 0.13.0, which is older than the model: use vLLM 0.17 or later" in detail


@pytest.mark.parametrize("version", ["0.17.1rc1.dev25+g0123abc", "0.19.1+cpu"])
def test_a_vllm_that_should_list_it_is_not_called_old(version: str) -> None:
    (detail,) = registry({MAIN: unlisted()}, version).details
    assert f"this image has vLLM {version}: use a vLLM that lists it" in detail


def test_no_first_version_is_claimed_for_an_unknown_model() -> None:
    (detail,) = registry({"Qwen": unlisted()}).details
    assert "older" not in detail
    assert "this image has vLLM 0.14.0: use a vLLM that lists it" in detail


@pytest.mark.parametrize(("version", "words"), [("", "no metadata of vLLM"), ("ours_1", "vLLM ours_1")])
def test_a_vllm_without_a_readable_version_is_not_an_error(version: str, words: str) -> None:
    (detail,) = registry({MAIN: unlisted()}, version).details
    assert f"this image has {words}" in detail
    assert "use vLLM 0.17 or later" in detail


def test_missing_heads_beside_the_main_model_are_named_alone_with_what_will_not_work() -> None:
    answers = {MAIN: listed(loaded="x"), HEADS: unlisted("/v/qwen3_5_mtp.py", main=(MAIN,))}
    (detail,) = registry(answers, "0.17.0").details
    assert detail.startswith(f"{HEADS} is not registered, although /v/qwen3_5_mtp.py defines it; {MAIN} is:")
    assert "speculative decoding with its MTP heads will not work" in detail
    assert f"remove {HEADS} from smoke.architectures" in detail


def test_a_listed_class_that_does_not_load_fails() -> None:
    assert registry({"Qwen": listed(fails="ImportError: no triton")}) == Verdict(
        "registry",
        CheckOutcome.FAILED,
        ("Qwen is listed by vLLM's registry, but its class does not load: ImportError: no triton",),
    )


def test_a_registry_that_cannot_be_asked_fails() -> None:
    assert registry({"Qwen": ProbeAnswer(error="ImportError: x")}).details == (
        "Qwen: vLLM's registry cannot be asked: ImportError: x",
    )


def test_a_crash_of_the_emulator_is_its_own_outcome() -> None:
    assert registry({"Qwen": ProbeAnswer(error="died", crashed=True)}).outcome is CheckOutcome.EMULATOR
