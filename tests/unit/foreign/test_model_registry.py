"""vLLM's registry.py is read by its syntax tree; nothing in it runs."""

import pytest

from pipeline.core.errors import TandemError
from pipeline.foreign.model_registry import parse_architectures


def test_all_tables_that_are_merged_count_and_the_later_wins() -> None:
    source = """
import torch, sys
raise SystemExit("never run")
_TEXT_GENERATION_MODELS = {"A": ("a", "A"), "B": ("a", "B")}
_MULTIMODAL_MODELS: dict[str, tuple[str, str]] = {"C": ("c", "C"), "B": ("b", "B2")}
_UNUSED_MODELS = {"Z": ("z", "Z")}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_MULTIMODAL_MODELS, "D": ("d", "D")}
"""
    assert parse_architectures(source) == {"A": "a:A", "B": "b:B2", "C": "c:C", "D": "d:D"}


def test_tables_may_grow_after_they_are_made() -> None:
    source = """
_A_MODELS = {"A": ("a", "A")}
_B_MODELS = {"B": ("b", "B")} | _A_MODELS
_VLLM_MODELS = dict(_A_MODELS)
_VLLM_MODELS.update(_B_MODELS)
_VLLM_MODELS |= {"C": ("c", "C")}
_VLLM_MODELS["D"] = ("d", "D")
"""
    assert parse_architectures(source) == {"A": "a:A", "B": "b:B", "C": "c:C", "D": "d:D"}


def test_entries_of_another_shape_are_left_out() -> None:
    source = """
def name(): return "X"
_VLLM_MODELS = {"A": ("a", "A"), "B": "0.10", name(): ("x", "X"), "C": (name(), "C"), **name(), 3: ("t", "T")}
"""
    assert parse_architectures(source) == {"A": "a:A"}


def test_without_the_merged_table_all_tables_of_models_count() -> None:
    source = '_A_MODELS = {"A": ("a", "A")}\n_B_MODELS = {"B": ("b", "B")}\n_OLD = {"C": ("c", "C")}\n'
    assert parse_architectures(source) == {"A": "a:A", "B": "b:B"}


def test_a_registry_in_another_form_is_refused() -> None:
    with pytest.raises(TandemError, match="has no _VLLM_MODELS") as error:
        parse_architectures("MODELS = load()\n")
    assert "does not know" in error.value.hint


@pytest.mark.parametrize("source", ["def (", "x = \0", "(" * 5000])
def test_text_that_is_not_python_is_a_plain_error(source: str) -> None:
    with pytest.raises(TandemError, match="cannot be read as Python"):
        parse_architectures(source)
