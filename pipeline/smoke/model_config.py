"""Check `config`: vLLM reads the target model's config.json as it is written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.models import Image
from pipeline.core.errors import ConfigError
from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.containers import PROBE_FOLDER
from pipeline.smoke.probe import Answers, judge_answer
from pipeline.smoke.verdict import Verdict

NAME = "config"
FILE = "config/config.json"
QUESTION = f"config:{PROBE_FOLDER}/config"


def read_files(image: Image, folder: Path) -> dict[str, bytes]:
    """Returns the config.json that smoke.config points to. Raises ConfigError if it does not exist."""
    file = folder / str(image.smoke.config) / "config.json"
    if not file.is_file():
        raise ConfigError(
            f"{folder / 'image.yaml'}: smoke.config is {image.smoke.config!r}, but {file} does not exist",
            hint="put the target model's config.json there, or remove the key",
        )
    return {FILE: file.read_bytes()}


def judge(expected: Expectations, answers: Answers) -> Verdict:
    """Names every value that vLLM reads differently, and an architecture that image.yaml does not name."""
    return judge_answer(NAME, QUESTION, answers, lambda value: _compare(value, expected.image.smoke.architectures))


CHECK = Check(
    name=NAME,
    judge=judge,
    asked=lambda image: image.smoke.config is not None,
    questions=lambda _image: (QUESTION,),
    files=read_files,
)


def _compare(parsed: Mapping[str, Any], wanted: Sequence[str]) -> tuple[list[str], str]:
    architectures = parsed["architectures"]
    faults = [
        f"vLLM reads {key} as {value}, but the model's config.json says {written}"
        for key, written, value in parsed["differs"]
    ]
    if wanted and not set(architectures) & set(wanted):
        faults.append(
            f"the model's config.json names {', '.join(architectures) or 'no architecture'},"
            " none of those that image.yaml wants in the registry"
        )
    return faults, f"read by {parsed['class']} for {', '.join(architectures)}"
