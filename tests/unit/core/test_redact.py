"""No secret survives in a text that is written, in whatever spelling; nothing else is taken out of it."""

import base64
import io
import json
import shlex
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import redact
from pipeline.core.errors import TandemError
from pipeline.core.redact import COMMON, SHORTEST, Redactor

SECRETS = st.text(min_size=SHORTEST).filter(
    lambda s: len(s.strip()) >= SHORTEST and not COMMON.fullmatch(s.strip()) and s.strip("* \n\t\r") != ""
)


@given(secret=SECRETS, before=st.text(), after=st.text())
def test_a_secret_of_four_characters_never_survives(secret: str, before: str, after: str) -> None:
    redactor = Redactor()
    redactor.register([secret])
    assert secret.strip() not in redactor.clean(before + secret + after)
    raw = f"{before}{secret}{after}".encode(errors="replace")
    if secret.isascii():
        assert secret.strip().encode() not in redactor.clean_bytes(raw)


@given(secret=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=8, max_size=30))
def test_a_secret_survives_in_no_spelling_that_programs_use(secret: str) -> None:
    redactor = Redactor()
    redactor.register([secret])
    if secret.strip("*"):
        for spelled in (json.dumps(secret), repr(secret), shlex.quote(secret), quote(secret), quote(secret, safe="")):
            cleaned = redactor.clean(f"x {spelled} y")
            assert cleaned.strip("xy '\"").strip("*") == "", (spelled, cleaned)


@given(secrets=st.lists(SECRETS, max_size=5), text=st.text())
def test_cleaning_a_clean_text_changes_nothing(secrets: list[str], text: str) -> None:
    redactor = Redactor()
    redactor.register(secrets)
    cleaned = redactor.clean(text)
    assert redactor.clean(cleaned) == cleaned


@pytest.mark.parametrize("value", ["1", "true", "True", "none", "abc", "", "   ", "***", "\n", "a\nb"])
def test_what_is_short_or_common_is_no_secret(value: str) -> None:
    redactor = Redactor()
    redactor.register([value])
    text = "1 true True none abc a b *** \n everything stays"
    assert redactor.clean(text) == text


def test_a_secret_of_several_lines_is_hidden_line_by_line() -> None:
    redactor = Redactor()
    redactor.register(["-----BEGIN-----\nMIIEvQ\nIBADAN\n-----END-----\n"])
    assert redactor.clean("line MIIEvQ") == "line ***"
    assert redactor.clean("IBADAN|") == "***|"


def test_a_file_of_another_encoding_is_cleaned_too() -> None:
    redactor = Redactor()
    redactor.register(["pässwörd"])
    raw = b"\xff\x00" + "pässwörd".encode() + b" http://me:other@host\xfe"
    assert redactor.clean_bytes(raw) == b"\xff\x00*** http://***@host\xfe"


def test_the_environment_s_secrets_are_known_without_being_registered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_DB_PASSWD", "canary-1")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:canary-2@proxy:3128")
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"auths": {"h": {"auth": _basic("me", "canary-3")}}}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))
    redact.forget()
    assert redact.clean("canary-1 canary-2 canary-3") == "*** *** ***"
    assert redact.clean(f"see {tmp_path}") == f"see {tmp_path}"


def test_a_login_is_hidden_as_a_header_has_it() -> None:
    redact.register_login("me", "s3cr3t")
    assert redact.clean(f"Authorization: Basic {_basic('me', 's3cr3t')}") == "Authorization: Basic ***"


def test_a_failure_s_message_and_hint_hold_no_secret_that_is_known_by_then() -> None:
    error = TandemError("http://me:s3cr3t@host says canary-4", hint="not canary-4, and not http://me:x@host")
    redact.register("canary-4")
    assert str(error) == "http://***@host says ***"
    assert error.hint == "not ***, and not http://***@host"


def test_json_is_cleaned_at_any_depth() -> None:
    redact.register("canary-5")
    value = {"a": ["x canary-5", 1, None, {"canary-5": True}], "b": 0.5}
    assert redact.clean_json(value) == {"a": ["x ***", 1, None, {"***": True}], "b": 0.5}


def test_a_stream_passes_on_no_secret() -> None:
    redact.register("canary-6")
    out = io.StringIO()
    stream = redact.CleanStream(out)
    print("a canary-6 b", file=stream)
    stream.writelines(["canary-6\n", "c\n"])
    assert out.getvalue() == "a *** b\n***\nc\n"
    assert stream.getvalue() == out.getvalue()


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()
