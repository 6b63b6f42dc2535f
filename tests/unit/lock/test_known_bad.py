"""What is said at lock time of combinations that metadata allows."""

from pipeline.core.log import NullLog
from pipeline.lock import resolver
from pipeline.lock.known_bad import DASHBOARD, find_warnings

WHOLE = dict.fromkeys(DASHBOARD, "1")


def test_ray_without_its_dashboard_is_reported_with_the_missing_packages() -> None:
    (said,) = find_warnings({"ray": "2.48.0", "aiohttp": "3.13.0", "cupy-cuda12x": "14.0"})
    assert said.startswith("ray 2.48.0 is without its dashboard's packages (aiohttp-cors, colorful, prometheus-client")
    assert "ask for ray[default]" in said


def test_ray_with_its_dashboard_and_no_ray_cause_no_warning() -> None:
    assert find_warnings({"ray": "2.48.0", **WHOLE}) == ()
    assert find_warnings({"vllm": "0.17.1"}) == ()


def test_reported_combinations_are_named_with_where_they_are_reported() -> None:
    assert "gpustack/runner#178" in find_warnings({"ray": "2.55.1", **WHOLE})[0]
    assert find_warnings({"vllm": "0.26.0", "transformers": "5.14.1"})[0].startswith(
        "vllm 0.26.0 with transformers 5.14.1: "
    )
    assert find_warnings({"vllm": "0.26.0", "transformers": "5.13.0"}) == ()


def test_a_version_that_cannot_be_read_is_not_among_them() -> None:
    assert find_warnings({"ray": "ours_2025", **WHOLE}) == ()


def test_they_are_warnings_in_the_log() -> None:
    log = NullLog()
    resolver.warn_known_bad({"ray": "2.48.0"}, log)
    assert log.lines[0].startswith("warning: ray 2.48.0")
