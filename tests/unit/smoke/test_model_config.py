"""The verdict on how vLLM reads the model's config.json."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from pipeline.smoke import model_config
from pipeline.smoke.probe import ProbeAnswer
from pipeline.smoke.verdict import CheckOutcome, Verdict
from tests.unit.smoke.expected import debian_image, expected_image


def verdict(parsed: dict[str, Any]) -> Verdict:
    expected = expected_image({"config": "model", "architectures": ("Qwen",)})
    return model_config.judge(expected, {model_config.QUESTION: ProbeAnswer(parsed)})


def test_a_config_that_is_read_as_it_is_written_passes() -> None:
    passed = verdict({"class": "vllm.QwenConfig", "architectures": ["Qwen"], "differs": []})
    assert passed == Verdict("config", CheckOutcome.OK, ("read by vllm.QwenConfig for Qwen",))


def test_a_parser_that_uses_its_own_defaults_fails() -> None:
    parsed = {"class": "vllm.QwenConfig", "architectures": ["Qwen"], "differs": [["num_hidden_layers", 48, 40]]}
    assert verdict(parsed).details == ("vLLM reads num_hidden_layers as 40, but the model's config.json says 48",)


def test_a_config_for_another_architecture_fails() -> None:
    (detail,) = verdict({"class": "vllm.LlamaConfig", "architectures": ["Llama"], "differs": []}).details
    assert "names Llama, none of those" in detail


def test_a_missing_config_is_refused_with_its_key_and_path(tmp_path: Path) -> None:
    image = debian_image({"config": "model"})
    with pytest.raises(ConfigError, match=r"smoke.config is 'model', but .*/model/config.json does not exist"):
        model_config.read_files(image, tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert model_config.read_files(image, tmp_path) == {"config/config.json": b"{}"}
