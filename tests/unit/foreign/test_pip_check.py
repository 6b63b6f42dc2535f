"""What is inconsistent among distributions, judged for a machine that is not this one."""

import pytest

from pipeline.foreign.facts import InstalledDistribution
from pipeline.foreign.pip_check import find_conflicts, new_conflicts


def one(name: str, version: str, *requires: str, extras: tuple[str, ...] = ()) -> InstalledDistribution:
    return InstalledDistribution(
        name=name, version=version, place="/usr/lib/python3/dist-packages", requires=requires, extras=extras
    )


def of(
    *inside: InstalledDistribution, asked: tuple[str, ...] = (), platform: str = "linux/arm64", python: str = "3.12.3"
) -> list[str]:
    return list(find_conflicts(inside, python=python, platform=platform, asked=asked))


def test_upgraded_transformers_are_one_line() -> None:
    found = of(one("vllm", "0.17.1", "transformers<5"), one("transformers", "5.3.0"))
    assert found == ["vllm 0.17.1 wants transformers<5, but transformers 5.3.0 is there"]


def test_a_missing_distribution_is_a_line_and_lines_are_sorted() -> None:
    found = of(one("b", "1", "missing<3,>=2"), one("a", "1", "Missing_Too"))
    assert found == ["a 1 wants missing-too, which is not there", "b 1 wants missing>=2,<3, which is not there"]


def test_a_version_that_is_allowed_is_not_a_conflict() -> None:
    inside = (
        one("vllm", "0.17.1rc1.dev25+g123", "torch==2.9.0", "Ray>=2.48"),
        one("torch", "2.9.0+cu130"),
        one("ray", "2.50.0rc1"),
    )
    assert of(*inside) == []


@pytest.mark.parametrize(
    ("marker", "counts"),
    [
        ("platform_machine == 'aarch64'", True),
        ("platform_machine == 'x86_64'", False),
        ("sys_platform == 'darwin' or os_name == 'nt'", False),
        ("python_version < '3.12'", False),
        ("python_full_version >= '3.12.3'", True),
        ("platform_system == 'Linux' and implementation_name == 'cpython'", True),
        ("extra == 'tests'", False),
        ("'x' == 'y'", False),
    ],
)
def test_markers_are_judged_for_the_target(marker: str, counts: bool) -> None:
    assert bool(of(one("a", "1", f"missing; {marker}"))) == counts


def test_the_machine_is_that_of_the_platform() -> None:
    assert of(one("a", "1", "missing; platform_machine == 'x86_64'"), platform="linux/amd64", python="3.11")


RAY = one("ray", "2.48.0", "cupy-cuda12x; extra == 'cgraph'", "ray[cgraph]; extra == 'all'", extras=("cgraph", "all"))


def test_an_extra_counts_only_where_something_asks_for_it() -> None:
    wants = "ray[cgraph] 2.48.0 wants cupy-cuda12x, which is not there"
    assert of(RAY) == []
    assert of(RAY, one("vllm", "0.17.1", "ray[cgraph]>=2.48")) == [wants]
    assert of(RAY, one("vllm", "0.17.1", "ray[cgraph]>=2.48; sys_platform == 'win32'")) == []
    assert of(RAY, asked=("ray[cgraph]",)) == [wants]
    assert of(RAY, asked=("ray[cgraph]; sys_platform == 'win32'",)) == []


def test_an_extra_that_asks_for_another_extra_counts_too() -> None:
    assert of(RAY, asked=("Ray[ALL]",)) == ["ray[cgraph] 2.48.0 wants cupy-cuda12x, which is not there"]


def test_a_version_that_does_not_follow_pep_440_is_compared_as_text() -> None:
    private = one("nv", "25.11_internal")
    assert of(private, one("a", "1", "nv")) == []
    assert of(private, one("a", "1", "nv!=2")) == []
    assert of(private, one("a", "1", "nv>=2")) == ["a 1 wants nv>=2, but nv 25.11_internal is there"]


def test_a_requirement_that_cannot_be_read_is_reported() -> None:
    assert of(one("a", "1", "six (>=foo")) == ["a 1 has a requirement that cannot be read: 'six (>=foo'"]


def test_of_two_distributions_of_one_name_the_first_counts() -> None:
    wants = one("a", "1", "six>=2")
    assert of(one("six", "2"), one("six", "1"), wants) == []
    assert of(one("six", "1"), one("six", "2"), wants) == ["a 1 wants six>=2, but six 1 is there"]


def test_conflicts_of_the_base_are_not_new() -> None:
    assert new_conflicts(("a", "b"), ("b", "c")) == ("c",)
