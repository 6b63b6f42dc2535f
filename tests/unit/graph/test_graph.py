"""A link that leads to itself is refused with one message, which says what to remove."""

from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.graph.globs import expand


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a").write_text("a")
    (tmp_path / "files/loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize("pattern", ["files", "files/**", "files/loop", "**/loop"])
def test_a_link_to_itself_is_refused_by_its_path(root: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"^files/loop: a link that leads to itself$") as caught:
        expand(str(root), [pattern])
    assert "remove it" in caught.value.hint


def test_a_circle_of_links_is_one_too(root: Path) -> None:
    (root / "files/loop").unlink()
    (root / "files/there").symlink_to("back")
    (root / "files/back").symlink_to("there")
    with pytest.raises(ConfigError, match="files/back: a link that leads to itself"):
        expand(str(root), ["files"])


def test_what_is_left_out_may_be_a_loop_and_a_link_may_lead_nowhere(root: Path) -> None:
    (root / "files/dangling").symlink_to("nowhere")
    assert list(expand(str(root), ["files/**", "!files/loop"])) == ["files/a", "files/dangling"]
