"""What programs may hear of the caller; tests/flow/test_hermetic.py asks programs."""

import os

import pytest

from pipeline.core import procs
from tests import hostile

GIVEN = {**dict.fromkeys(hostile.NAMES, "hostile"), "PATH": "/bin", "PYTHONPATH": "/x", "UMASK": "0"}


def test_programs_that_decide_bytes_inherit_only_where_programs_are() -> None:
    assert procs.program_environment(procs.SEALED, GIVEN) == {"PATH": "/bin", **procs.FIXED}


@pytest.mark.parametrize(
    "name",
    ["UV_INDEX", "UV_INDEX_OURS_PASSWORD", "PIP_INDEX_URL", "https_proxy", "HTTPS_PROXY", "SSL_CERT_FILE", "NETRC"],
)
def test_programs_that_use_the_network_inherit_where_packages_come_from(name: str) -> None:
    assert procs.program_environment(procs.NETWORK, {name: "x"}) == {name: "x", **procs.FIXED}
    assert procs.program_environment(procs.DOCKER, {name: "x"}) == {name: "x", **procs.FIXED}
    assert procs.program_environment(procs.SEALED, {name: "x"}) == procs.FIXED


@pytest.mark.parametrize("name", ["DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH"])
def test_only_docker_inherits_which_engine_to_use(name: str) -> None:
    assert procs.program_environment(procs.DOCKER, {name: "x"}) == {name: "x", **procs.FIXED}
    assert procs.program_environment(procs.NETWORK, {name: "x"}) == procs.FIXED


def test_no_program_inherits_how_uv_chooses_among_indexes() -> None:
    assert procs.program_environment(procs.DOCKER, {"UV_INDEX_STRATEGY": "unsafe-best-match"}) == procs.FIXED


def test_no_program_inherits_settings_that_choose_versions() -> None:
    heard = procs.program_environment(procs.DOCKER, GIVEN)
    assert heard.keys() & hostile.NAMES == {"HOME", "USER", "LOGNAME", "UV_CACHE_DIR", *procs.FIXED}
    assert {name: heard[name] for name in procs.FIXED} == procs.FIXED


def test_inherited_and_uninherited_variables_are_all_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDX_BUILDER", "x")
    for inherited in (procs.SEALED, procs.NETWORK, procs.DOCKER):
        unheard = procs.uninherited_variables(inherited)
        assert "BUILDX_BUILDER" in unheard
        assert {*unheard, *procs.program_environment(inherited)} == {*os.environ, *procs.FIXED}
        assert not {*unheard} & procs.program_environment(inherited).keys()
