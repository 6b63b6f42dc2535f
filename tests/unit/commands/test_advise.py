"""What `./doitw advise` refuses before it reads an image."""

from pathlib import Path

import pytest

from pipeline.commands.advise import AdviseCommand
from pipeline.config.loader import RESERVED_NAMES
from pipeline.config.models import NAME_WORDS
from pipeline.core.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Big", f"it is not {NAME_WORDS}"), *((name, "it is a word of Tandem's own") for name in sorted(RESERVED_NAMES))],
)
def test_a_new_image_has_a_name_that_is_free_to_have(monkeypatch: pytest.MonkeyPatch, name: str, reason: str) -> None:
    monkeypatch.chdir(ROOT)
    options = {"model_from": "a/b:1", "cluster_from": "a/c:1", "architecture": [], "platform": "", "write": name}
    with pytest.raises(ConfigError) as refused:
        AdviseCommand().execute(options, [])
    assert str(refused.value) == f"doit advise: --write {name}: {reason}"
