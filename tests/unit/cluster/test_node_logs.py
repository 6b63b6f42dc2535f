"""What is shown of a node's log."""

import pytest

from pipeline.cluster.node_logs import shorten


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("(EngineCore pid=531) INFO 11-30 02:58:22 [kv_cache_utils.py:1319] GPU KV cache size", "GPU KV cache size"),
        (
            "(EngineCore pid=5) \x1b[36m(RayWorkerWrapper pid=3)\x1b[0m INFO 11-30 02:58:25 [a.py:8] Warming up",
            "Warming up",
        ),
        ("tandem: ray is up", "tandem: ray is up"),
        ("x" * 70, "x" * 59 + "…"),
    ],
)
def test_a_progress_line_shows_the_message_alone(line: str, wanted: str) -> None:
    assert shorten(line) == wanted
