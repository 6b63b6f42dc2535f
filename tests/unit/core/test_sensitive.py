"""Where a text is a secret: behind a name that says so, and before the @ of a URL."""

import base64
import json
import time

import pytest

from pipeline.core.sensitive import (
    hide_urls,
    holds_secret,
    map_secret_options,
    name_says_secret,
    option_secrets,
    url_secrets,
    value_secrets,
)

SECRET_NAMES = (
    "VLLM_API_KEY HF_TOKEN DB_PASSWD CREDENTIALS BASIC_AUTH PGPASSWORD MYSQL_PWD GITHUBTOKEN APIKEY api_key apiKey"
    " AWS_SECRET_ACCESS_KEY --hf-token --api-key --ssl-keyfile-password SECRET DB_PASS _authToken HTTP_AUTHORIZATION"
    " API_TOKENS MY_SECRETS OPENAI_API_KEY_2 key identitytoken VAULT_SECRET_ID HF_TOKEN_2 NEW_TOKEN"
)
OTHER_NAMES = (
    "RAY_AUTH_MODE RAY_AUTH_TOKEN_PATH TOKENIZERS_PARALLELISM --max-num-batched-tokens --ssl-keyfile SSH_AUTH_SOCK PWD"
    " OLDPWD UV_KEYRING_PROVIDER GIT_AUTHOR_NAME XAUTHORITY KEYBOARD MONKEY PASSWORD_STORE_DIR --tokenizer --port PATH"
    " VLLM_MAX_TOKENS BYPASS HF_HUB_OFFLINE SECRET_NAME HTTPS_PROXY --long-prefill-token-threshold"
    " VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE eos_token_id pad_token_id stop_token_ids NCCL_IB_PKEY"
    " --compilation-config.pass_config.fuse_norm_quant --speculative-token-tree tokens_per_second eos_token"
    " AWS_ACCESS_KEY_ID"
)


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_a_name_says_that_its_value_is_a_secret(name: str) -> None:
    assert name_says_secret(name)


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_a_name_that_only_resembles_one_does_not(name: str) -> None:
    assert not name_says_secret(name)


@pytest.mark.parametrize(
    ("url", "hidden", "secrets"),
    [
        ("http://me:s3cr3t@127.0.0.1:8/x", "http://***@127.0.0.1:8/x", ["s3cr3t"]),
        ("https://t0ken@host/x", "https://***@host/x", ["t0ken"]),
        ("https://t0ken:@host/x", "https://***@host/x", ["t0ken"]),
        ("http://me:a/b#c@host/x", "http://***@host/x", ["a/b#c"]),
        ("http://me:p@ss@host/x", "http://***@host/x", ["p@ss"]),
        ("postgres://me:s3cr3t@db/x", "postgres://***@db/x", ["s3cr3t"]),
        ("see 'http://a:bcde@h' and http://f:ghij@k", "see 'http://***@h' and http://***@k", ["bcde", "ghij"]),
        ("ssh://me@spark-1", "ssh://me@spark-1", []),
        ("ssh://me:s3cr3t@spark-1", "ssh://me:***@spark-1", ["s3cr3t"]),
        ("http://host:8000/@scope/x", "http://host:8000/@scope/x", []),
        ("https://host/?mail=me@host", "https://host/?mail=me@host", []),
        ("https://host/ and me@host", "https://host/ and me@host", []),
    ],
)
def test_user_and_password_of_a_url(url: str, hidden: str, secrets: list[str]) -> None:
    assert hide_urls(url, "***") == hidden
    assert list(url_secrets(url)) == secrets


def test_the_values_of_secret_options_are_found_in_every_spelling() -> None:
    args = ["--api-key", "one", "two", "--hf-token=three-3", "--port", "8000", "--proxy", "http://me:four@host"]
    args += [
        "--extra",
        '{"api_token": "five"}',
        "--max-num-batched-tokens",
        "4096",
        "--flag",
        "--api-key",
        "six",
        "-O0",
    ]
    assert option_secrets(args) == ["one", "two", "three-3", "http://me:four@host", '{"api_token": "five"}', "six"]
    assert list(map_secret_options(args, lambda option, _: f"<{option}>")) == [
        *("--api-key", "<--api-key>", "<--api-key>", "--hf-token=<--hf-token>", "--port", "8000", "--proxy"),
        *("<--proxy>", "--extra", "<--extra>", "--max-num-batched-tokens", "4096", "--flag"),
        *("--api-key", "<--api-key>", "-O0"),
    ]


def test_a_configuration_s_secrets_are_found_at_any_depth() -> None:
    login = base64.b64encode(b"me:s3cr3t").decode()
    value = {
        "clusters": {"a": {"serve": {"env": {"DB_PASSWD": "one", "X": "1"}, "args": ["--api-key", "two"]}}},
        "auths": {"host": {"auth": login}},
        "DOCKER_AUTH_CONFIG": json.dumps({"auths": {"host": {"password": "three"}}}),
        "tokens": [4444, True, None],
        "passwords": [5555],
        "HTTPS_PROXY": "http://me:five@proxy",
    }
    found = set(value_secrets(value))
    assert {"one", "two", login, "s3cr3t", "three", "5555", "five"} <= found
    assert not {"1", "True", "None", "a", "4444"} & found
    assert "4444" in set(value_secrets(value, plain=True))


@pytest.mark.parametrize(
    "value",
    [
        {"args": "--dtype float32 --api-key sk-mistyped"},
        {"args": "--api-key=sk-mistyped"},
        {"args": ["--api-key sk-mistyped"]},
        {"env": "VLLM_API_KEY=sk-mistyped X=1"},
        {"env": ["VLLM_API_KEY=sk-mistyped"]},
        {"env": {"VLLM_API_KEY=sk-mistyped": None}},
        "--api-key 'sk-mistyped",
        "x='sk VLLM_API_KEY=sk-mistyped",
    ],
)
def test_a_secret_in_the_wrong_place_is_found(value: object) -> None:
    assert any("sk-mistyped" in found for found in value_secrets(value))


def test_a_text_about_an_option_is_not_a_command_line() -> None:
    assert not list(value_secrets({"PYTEST_CURRENT_TEST": "what is behind --api-key is hidden"}))


def test_a_number_behind_an_option_is_found() -> None:
    assert "12345678" in set(value_secrets({"args": ["--api-key", 12345678]}))


def test_numbers_and_short_words_are_secrets_of_a_strong_name_only() -> None:
    names = {"PIN_KEY": "1234", "HF_TOKEN": "local", "DB_PASSWORD": "4321", "API_KEY": "99999", "MY_SECRET": "abc"}
    assert set(value_secrets(names)) == {"4321", "99999", "abc"}


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"a": 1}', "http://host/x", "[" * 100_000])
def test_a_text_without_a_secret_holds_none(text: str) -> None:
    assert not holds_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://" + "a" * 500_000 + " @",
        "a" * 500_000 + "://@ ",
        "http://" * 50_000 + "@",
        "a:" * 200_000 + "://x:" + "b:" * 200_000,
        "://a:" * 100_000 + "@",
        "@" * 300_000 + "://" + "@" * 300_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_line_of_a_stranger_cannot_hold_up_who_cleans_it(text: str) -> None:
    start = time.process_time()
    hide_urls(text, "***")
    assert time.process_time() - start < 5
