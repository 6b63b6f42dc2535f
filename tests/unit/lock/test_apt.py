"""What apt says of suites and packages, as mistakes of the image that asks for them."""

import pytest

from pipeline.lock import apt

NO_SUITE = "E: The repository 'http://m.invalid/debian {} Release' does not have a Release file.\n"


def test_a_suite_that_the_mirror_lacks_is_told_from_a_network_that_is_not_there() -> None:
    assert apt.lacks_suite(NO_SUITE.format("trixy") + NO_SUITE.format("trixy-updates"), "trixy")
    offline = "E: Failed to fetch http://m.invalid/debian/dists/trixy/InRelease Could not connect\n"
    assert not apt.lacks_suite(offline, "trixy")
    assert not apt.lacks_suite(offline + NO_SUITE.format("trixy"), "trixy")


def test_a_missing_pocket_does_not_mean_that_the_suite_is_missing() -> None:
    assert not apt.lacks_suite(NO_SUITE.format("trixie-updates"), "trixie")


@pytest.mark.parametrize(
    "said", ["E: Unable to locate package nosuch\n", "a : Depends: b (= 2) but 1 is to be installed\n"]
)
def test_a_refusal_begins_with_the_place_of_the_request(said: str) -> None:
    where = "dockerfiles/cpu/image.yaml: base.packages"
    assert apt.refusal_message(said, "trixie", "arm64", where).startswith(f"{where}: trixie ")
    assert apt.refusal_message(said, "trixie", "arm64").startswith("trixie ")
