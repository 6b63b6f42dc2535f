"""The index that stands for what is inside an image."""

import zipfile
from pathlib import Path

from pipeline.foreign.facts import InstalledDistribution
from pipeline.lock import stub_index


def one(name: str, version: str, *requires: str, extras: tuple[str, ...] = ()) -> InstalledDistribution:
    return InstalledDistribution(name=name, version=version, place="/opt", requires=requires, extras=extras)


def metadata(file: Path) -> str:
    with zipfile.ZipFile(file) as wheel:
        return wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA"))).decode()


def test_the_index_has_one_version_of_every_distribution(tmp_path: Path) -> None:
    inside = [one("torch", "2.9.0+cu130"), one("flash-attn", "2.8.0.POST1"), one("nv", "25.11_internal")]
    assert stub_index.write_index(inside, tmp_path) == {"torch": "2.9.0+cu130", "flash-attn": "2.8.0.post1", "nv": "0"}
    assert (tmp_path / "flash-attn/flash_attn-2.8.0.post1-py3-none-any.whl").is_file()
    assert 'href="torch-2.9.0%2Bcu130-py3-none-any.whl"' in (tmp_path / "torch/index.html").read_text()


def test_a_stub_has_only_the_requirements_of_extras(tmp_path: Path) -> None:
    requires = ("numpy<2", "aiohttp; extra == 'default'", "six; python_version < '3'", "odd (>=x; extra == 'y'")
    stub_index.write_index([one("ray", "2.48.0", *requires, extras=("default",))], tmp_path)
    text = metadata(tmp_path / "ray/ray-2.48.0-py3-none-any.whl")
    assert "Provides-Extra: default\n" in text
    assert [line for line in text.splitlines() if line.startswith("Requires-Dist")] == [
        "Requires-Dist: aiohttp; extra == 'default'"
    ]


def test_of_two_distributions_with_one_name_the_first_counts_and_leftovers_are_ignored(tmp_path: Path) -> None:
    inside = [one("six", "1.16.0"), one("six", "1.17.0"), one("~orch", "1"), one("..", "1")]
    assert stub_index.write_index(inside, tmp_path) == {"six": "1.16.0"}
    assert [path.name for path in tmp_path.iterdir()] == ["six"]
