"""The docker client's own settings, damaged in every way that people and tools have found."""

from pathlib import Path

import pytest

from pipeline.core.errors import TandemError
from pipeline.host import docker_config


@pytest.mark.parametrize(
    "text",
    [
        "{bad",
        "[]",
        '{"auths": {"127.0.0.1:5000": {"auth": "!!!"}}}',
        '{"auths": {"127.0.0.1:5000": {"auth": 5}}}',
        '{"auths": {"127.0.0.1:5000": "x"}}',
        '{"HttpHeaders": 5}',
    ],
)
def test_what_cannot_be_read_is_one_message_that_names_the_file(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(TandemError, match=rf"{tmp_path}/config\.json, the docker client's own settings") as caught:
        docker_config.check_readable()
    assert "docker login" in caught.value.hint


def test_a_helper_that_is_no_name_is_found_when_a_login_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"credsStore": 5}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(TandemError, match=r"config\.json"):
        docker_config.find_login("127.0.0.1:5000")


def test_no_settings_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    docker_config.check_readable()
    assert docker_config.find_login("127.0.0.1:5000") == {}


@pytest.mark.parametrize("text", ['{"credsStore": "not-installed"}', '{"credHelpers": {"r:5000": "not-installed"}}'])
def test_a_credential_helper_that_is_missing_is_one_message_and_only_a_login_needs_it(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    docker_config.check_readable()
    with pytest.raises(TandemError, match=r"credential helper.*docker-credential-not-installed") as caught:
        docker_config.find_login("r:5000")
    assert "credsStore" in caught.value.hint
    assert not recwarn.list
