"""Which version is named as the remedy, and when nothing is said."""

from collections.abc import Callable, Sequence

import pytest
from packaging.requirements import Requirement

from pipeline.core.errors import Cancelled, ConfigError, TandemError
from pipeline.lock import alternatives
from pipeline.lock.conflict import VersionConflict

TEXT = "Because vllm==0.14.0 depends on transformers<5 and you require transformers>=5, …"
ASKED = ("vllm==0.14.0", "transformers>=5", "ray[default]==2.48.0")


def index(*versions: str, order: Callable[[Sequence[str]], str] = min) -> alternatives.Solve:
    """An answer to any request for vllm, out of those that go with the rest."""

    def solve(requirements: Sequence[str]) -> dict[str, str]:
        spec = next(Requirement(item).specifier for item in requirements if item.startswith("vllm"))
        fitting = [version for version in versions if spec.contains(version)]
        if not fitting:
            raise VersionConflict("nothing fits")
        return {"vllm": order(fitting)}

    return solve


def test_the_oldest_version_that_resolves_is_named() -> None:
    found = alternatives.later_versions(ASKED, TEXT, index("0.11.0", "0.19.1", "0.20.0"))
    assert found == (alternatives.LaterVersion("vllm==0.14.0", "vllm", "0.19.1", oldest=True),)
    assert alternatives.describe_later(found, "image.yaml") == (
        "vllm 0.19.1 is the oldest after vllm==0.14.0 that resolves with the rest: ask for vllm==0.19.1 in image.yaml"
    )


def test_a_resolver_that_does_not_give_the_oldest_first_is_asked_again() -> None:
    assert (
        alternatives.later_versions(ASKED, TEXT, index("0.19.1", "0.20.0", "0.21.0", order=max))[0].version == "0.19.1"
    )


def test_only_pins_that_clash_are_looked_at() -> None:
    assert alternatives.later_versions(("vllm>=0.14", "transformers>=5"), TEXT, index("0.19.1")) == ()
    assert alternatives.later_versions(("ray==2.48.0",), TEXT, index("0.19.1")) == ()


def test_nothing_is_said_when_nothing_resolves() -> None:
    assert alternatives.later_versions(ASKED, TEXT, index()) == ()
    assert alternatives.describe_later((), "image.yaml") == ""


@pytest.mark.parametrize("failure", [TandemError("the index cannot be reached"), ConfigError("no wheel fits")])
def test_nothing_is_said_when_the_index_does_not_answer(failure: TandemError) -> None:
    def solve(requirements: Sequence[str]) -> dict[str, str]:
        raise failure

    assert alternatives.later_versions(ASKED, TEXT, solve) == ()


def test_an_interruption_ends_the_search() -> None:
    def solve(requirements: Sequence[str]) -> dict[str, str]:
        raise Cancelled("interrupted")

    with pytest.raises(Cancelled):
        alternatives.later_versions(ASKED, TEXT, solve)


def test_a_version_that_was_found_in_time_is_not_called_the_oldest_without_proof() -> None:
    left = iter([True, False])
    found = alternatives.later_versions(ASKED, TEXT, index("0.19.1"), lambda: next(left))
    assert found == (alternatives.LaterVersion("vllm==0.14.0", "vllm", "0.19.1", oldest=False),)
    assert "oldest" not in alternatives.describe_later(found, "image.yaml")


def test_time_is_bounded() -> None:
    clock = iter([0.0, alternatives.ALL_SEARCHES_S - 1, alternatives.ALL_SEARCHES_S + 1])
    early = alternatives.search_deadline(lambda: next(clock))
    assert (early(), early()) == (True, False)


@pytest.mark.parametrize(
    ("requirement", "version"),
    [("a==1", "1"), ("a[x]==1+cu130; python_version>'3'", "1+cu130"), ("a==1.*", ""), ("a>=1", ""), ("a==1,!=2", "")],
)
def test_a_pin_allows_one_version(requirement: str, version: str) -> None:
    assert alternatives.pinned_version(requirement) == version


def test_extras_and_markers_stay_with_another_version() -> None:
    assert alternatives.with_versions_between(
        "ray[default]==2.9.0+cu130; python_version > '3'", "2.9.0+cu130", "3"
    ) == ('ray[default]<3,>2.9.0; python_version > "3"')
    assert alternatives.with_versions_between("ray[default]>=2") == "ray[default]"
    assert alternatives.with_version("ray[default]>=2", "2.48.0") == "ray[default]==2.48.0"
