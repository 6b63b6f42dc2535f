"""What a look at a node's machine tells, whatever else the programs in the image print."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster import causes
from pipeline.cluster.preflight import UnfitNodeError, judge_machine, refuse_privileged_port
from pipeline.core.errors import HostError
from pipeline.probes import serve_preflight

FACTS: dict[str, Any] = {
    "machine": "aarch64", "open_files": 20000, "available_kib": 22753000, "model_found": True, "broken_links": [],
}  # fmt: skip
MODEL = "/srv/models/q"


def output(**changes: object) -> str:
    return f"TANDEM {json.dumps({**FACTS, **changes})}\n"


def test_a_machine_that_fits_is_described() -> None:
    assert judge_machine(output(), 2, MODEL) == "aarch64, 22219 MiB free, 20000 open files"
    assert judge_machine(output(open_files=None), 2, MODEL).endswith("unlimited open files")


def test_other_lines_of_output_and_error_do_not_matter() -> None:
    noise = "groups: cannot find name for group ID 1000\nqemu: Unsupported syscall: 293\n"
    assert judge_machine(noise + output() + noise, 2, MODEL) == "aarch64, 22219 MiB free, 20000 open files"


@pytest.mark.parametrize("text", ["", "aarch64\n", "TANDEM {}", "TANDEM [", 'TANDEM {"machine": "aarch64"}'])
def test_output_that_tells_nothing_is_a_refusal_and_shown(text: str) -> None:
    with pytest.raises(UnfitNodeError, match="the preflight probe gave no usable answer") as error:
        judge_machine(text, 1, MODEL)
    assert text.strip() in str(error.value)


@pytest.mark.parametrize(
    ("facts", "cause", "message"),
    [
        ({"open_files": 1024}, "nofile", "at most 1024 files may be open, and 4096 are needed"),
        ({"available_kib": 2000000, "open_files": None}, "memory", "1953 MiB of memory are free, and 2048 are needed"),
        ({"model_found": False}, "model-missing", "/srv/models/q does not exist on this node"),
        ({"broken_links": ["config.json"]}, "model-missing", "/srv/models/q: config.json is a link to a file"),
    ],
)
def test_a_machine_that_lacks_something_is_refused_with_a_cause_of_the_catalogue(
    facts: dict[str, Any], cause: str, message: str
) -> None:
    with pytest.raises(UnfitNodeError, match=message) as refused:
        judge_machine(output(**facts), 1, MODEL)
    assert refused.value.cause == cause
    assert causes.cause_named(cause)


def test_memory_is_counted_for_every_node_of_the_machine() -> None:
    assert judge_machine(output(available_kib=3000000), 1, MODEL)
    with pytest.raises(UnfitNodeError):
        judge_machine(output(available_kib=3000000), 2, MODEL)


def test_the_probe_tells_of_this_machine_and_of_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "config.json").write_text("{}")
    (tmp_path / "good.json").symlink_to("inside/config.json")
    (tmp_path / "inside" / "bad.json").symlink_to("../../blobs/1")
    facts = serve_preflight.look(str(tmp_path))
    assert facts["model_found"]
    assert facts["broken_links"] == ["inside/bad.json"]
    assert facts["available_kib"] > 0
    with pytest.raises(UnfitNodeError, match=r"inside/bad\.json is a link"):
        judge_machine(output(**facts), 1, str(tmp_path))
    assert not serve_preflight.look(str(tmp_path / "missing"))["model_found"]
    assert serve_preflight.look(None)["model_found"]


@pytest.mark.parametrize("security", [["name=seccomp,profile=builtin", "name=cgroupns"], [], None])
def test_a_rootful_engine_may_publish_any_port(security: list[str] | None) -> None:
    refuse_privileged_port(80, 1024, {"SecurityOptions": security})


def test_a_privileged_port_is_refused_for_a_rootless_engine_before_anything_starts() -> None:
    info = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}
    refuse_privileged_port(1024, 1024, info)
    refuse_privileged_port(80, 80, info)
    with pytest.raises(HostError, match=r"serve\.port: 80: only root may use ports below 1024") as refused:
        refuse_privileged_port(80, 1024, info)
    assert "a port from 1024 up" in refused.value.hint
    assert "ip_unprivileged_port_start=80" in refused.value.hint
