"""No secret survives in a text that is written, in whatever spelling; nothing else is taken out of it."""

import base64
import io
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import redact
from pipeline.core.errors import TandemError
from pipeline.core.redact import ALWAYS_HIDDEN, COMMON, SHORTEST, Redactor

SECRETS = st.text(min_size=SHORTEST).filter(
    lambda s: len(s.strip()) >= SHORTEST and not COMMON.fullmatch(s.strip()) and s.strip("* \n\t\r") != ""
)
WORDS = re.compile(f"[A-Za-z0-9]{{1,{ALWAYS_HIDDEN - 1}}}")
"""Secrets of this form are hidden only where they stand by themselves."""


@given(secret=SECRETS.filter(lambda s: not WORDS.fullmatch(s.strip())), before=st.text(), after=st.text())
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
    redactor.register(
        ["-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhk\nIBADANBgkqhkMIIEvQ\n-----END PRIVATE KEY-----\n"]
    )
    assert redactor.clean("line MIIEvQIBADANBgkqhk") == "line ***"
    assert redactor.clean("IBADANBgkqhkMIIEvQ|") == "***|"
    assert redactor.clean("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"


KUBECONFIG = """
apiVersion: v1
current-context: production
clusters:
- cluster: {certificate-authority-data: TFMwdExTMUNSVWRKVGc}
users:
- name: administrator
  user:
    token: geheim-token-1
    client-key-data: TUlJRXZRSUJBREFOQmdrcWhr
    password: "geheim: 'quoted"
    private-key: |
      TUlJRXZRSUJBREFO/in-a-block
- {name: other, token: geheim-in-braces}
"""
ACCOUNT = {"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhk\n", "x": 1}


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        (KUBECONFIG, "geheim-token-1"),
        (KUBECONFIG, "TUlJRXZRSUJBREFOQmdrcWhr"),
        (KUBECONFIG, "geheim: 'quoted"),
        (KUBECONFIG, "TUlJRXZRSUJBREFO/in-a-block"),
        (KUBECONFIG, "geheim-in-braces"),
        (json.dumps(ACCOUNT, indent=2), "MIIEvQIBADANBgkqhk"),
        (json.dumps(ACCOUNT), "MIIEvQIBADANBgkqhk"),
    ],
)
def test_of_a_mapping_only_its_secrets_are_hidden(value: str, secret: str) -> None:
    redact.register_in({"CLUSTER_CREDENTIALS": value})
    structure = 'apiVersion: v1\n"type": "service_account",\ncurrent-context: production\n- name: administrator\n{\n}'
    assert redact.clean(f"{structure} {secret}") == f"{structure} ***"


HEX = "1234" + "0abcdef12" * 6 + "abcdef"


@pytest.mark.parametrize(
    ("name", "value"),
    [("PIN_KEY", "1234"), ("X_TOKEN", "arm64"), ("SESSION_COOKIE", "local"), ("LAB_PASSWORD", "root")],
)
def test_what_we_write_ourselves_stays_although_a_secret_is_short(name: str, value: str) -> None:
    redact.register_in({name: value})
    texts = [f"sha256:{HEX}", "linux/arm64", "/root/.cache/vllm", "tandem-local-head", "pipeline.local.yaml", "rooted"]
    for text in texts:
        assert redact.clean(text) == text
        assert redact.clean_bytes(text.encode()) == text.encode()
    if name != "LAB_PASSWORD":
        assert redact.clean("deploy:local 1234 s") == "deploy:local 1234 s"


@pytest.mark.parametrize("secret", ["1234567890abcdef", "1234abcd", "aB12"])
def test_a_digest_stays_whole(secret: str) -> None:
    redact.register(secret)
    digest = f"sha256:{(secret.lower() + HEX)[:64]}"
    assert redact.clean(f"{digest} {secret}") == f"{digest} ***"


@pytest.mark.parametrize("secret", ["s3cr3t", "1234", "Ab12", "hunter"])
@pytest.mark.parametrize(
    "around", ["x {} y", "key={}", '"{}"', "{}.", "p:{}\n", "\x1b[31m{}\x1b[0m", "\x1b[0;1m{},", "\\n{}"]
)
def test_a_short_secret_is_hidden_where_it_stands_by_itself(secret: str, around: str) -> None:
    redact.register_in({"DB_PASSWORD": secret})
    assert redact.clean(around.format(secret)) == around.format("***")
    assert redact.clean_bytes(around.format(secret).encode()) == around.format("***").encode()
    assert redact.clean(f"x{secret}y") == f"x{secret}y"


def test_nobody_cleans_before_the_environment_s_secrets_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DB_PASSWD", "canary-7")
    redact.forget()
    meanwhile = []
    register = redact.register_environment

    def slowly(env: Mapping[str, str]) -> None:
        monkeypatch.setattr(redact, "register_environment", register)
        thread = Thread(target=lambda: meanwhile.append(redact.clean("canary-7")))
        thread.start()
        thread.join()
        register(env)

    monkeypatch.setattr(redact, "register_environment", slowly)
    assert redact.clean("canary-7") == "***"
    assert meanwhile == ["***"]


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
