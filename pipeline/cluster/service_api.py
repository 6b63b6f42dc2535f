"""The API of a cluster's service: its health, its models, and one completion with the comparison of two."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from math import isfinite

from msgspec import Struct

from pipeline.config.models import Serve
from pipeline.core import http_client, redact
from pipeline.core.errors import ConfigError, TandemError

HOST = "127.0.0.1"
PROMPT = "two wheels, one chain: "
COMPLETION_TOKENS = 8
TOLERANCE = 1e-3
"""How far apart log-probabilities may be (float32; several ranks sum in another order than one)."""
HEALTH_TIMEOUT_S = 5.0
MODELS_TIMEOUT_S = 60.0
SHOWN_CHARS = 500
"""How much of an unexpected answer a message shows."""


class ServiceError(TandemError):
    """The service does not answer, or not as the API does."""


class Completion(Struct, frozen=True):
    """What the service answers to PROMPT."""

    prompt_tokens: list[int]
    tokens: list[int]
    logprobs: list[float]
    """The log-probability of each token, rounded to 6 digits."""
    text: str


def split_api_keys(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Returns a command line of vLLM without --api-key, and the keys of the last one; None if there is none."""
    others: list[str] = []
    keys: list[str] | None = None
    follows = False
    for word in args:
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == "--api-key":
            keys, follows = [value] if equals else [], not equals
            continue
        follows = follows and not word.startswith("-")
        if follows and keys is not None:
            keys.append(word)
        else:
            others.append(word)
    return others, keys


def api_keys(serve: Serve) -> tuple[str, ...]:
    """Returns the API keys that the service accepts: those of the last --api-key in serve.args, else VLLM_API_KEY.

    vLLM 0.19 reads its command line and environment like that. Raises ConfigError for a key that no HTTP header can
    carry.
    """
    _, configured = split_api_keys(serve.args)
    keys = tuple(key for key in configured or [serve.env.get("VLLM_API_KEY", "")] if key)
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise ConfigError(
            "serve.args, serve.env: the API key has characters that no HTTP header can carry",
            hint="choose a key of ASCII letters, digits and punctuation",
        )
    return keys


def authorization(serve: Serve) -> dict[str, str]:
    """Returns the header with which vLLM accepts a request to /v1; any one of several keys is enough."""
    keys = api_keys(serve)
    return {"Authorization": f"Bearer {keys[0]}"} if keys else {}


def hide_keys(text: str, serve: Serve) -> str:
    """Returns a text without the API keys and other secrets: vLLM logs its arguments when it starts."""
    for key in sorted(api_keys(serve), key=len, reverse=True):
        text = text.replace(key, redact.MASK)
    return redact.clean(text)


def is_healthy(port: int) -> bool:
    """Returns whether /health says 200."""
    try:
        return http_client.request((HOST, port), "/health", timeout_s=HEALTH_TIMEOUT_S).status == HTTPStatus.OK
    except (OSError, ValueError):
        return False


def list_models(port: int, serve: Serve, *, timeout_s: float = MODELS_TIMEOUT_S) -> list[str]:
    """Returns the names of the models that the service lists. Raises ServiceError."""
    try:
        answer = http_client.request((HOST, port), "/v1/models", headers=authorization(serve), timeout_s=timeout_s)
    except (OSError, ValueError) as error:
        raise ServiceError(f"/v1/models is not answered: {error}") from error
    body = _shown(answer.body, serve)
    if answer.status == HTTPStatus.UNAUTHORIZED:
        body += "; it wants an API key that neither serve.args (--api-key) nor serve.env (VLLM_API_KEY) gives"
    if answer.status != HTTPStatus.OK:
        raise ServiceError(f"the service answers {answer.status} to /v1/models: {body}")
    try:
        return [str(entry["id"]) for entry in answer.json()["data"]]
    except (ValueError, LookupError, TypeError) as error:
        raise ServiceError(f"/v1/models lists no models: {body}") from error


def complete(port: int, serve: Serve, *, timeout_s: float) -> Completion:
    """Asks the service on 127.0.0.1:port for a greedy completion of PROMPT with log-probabilities.

    `timeout_s` holds for each part of the answer. Raises ServiceError.
    """
    from http.client import HTTPConnection, HTTPException

    request = {
        "model": serve.name,
        "prompt": PROMPT,
        "max_tokens": COMPLETION_TOKENS,
        "temperature": 0,
        "logprobs": 1,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    headers = {"Content-Type": "application/json", **authorization(serve)}
    connection = HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("POST", "/v1/completions", json.dumps(request), headers)
        response = connection.getresponse()
        body = response.read()
    except HTTPException as error:
        raise ServiceError(hide_keys(f"the completion broke off: {error!r}", serve)) from error
    except OSError as error:
        raise ServiceError(hide_keys(str(error), serve)) from error
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        raise ServiceError(f"the service answers {response.status} to a completion: {_shown(body, serve)}")
    return parse_completion(body, serve)


def parse_completion(body: bytes, serve: Serve) -> Completion:
    """Returns what matters of the API's answer to a completion. Raises ServiceError if it is something else."""
    try:
        choice = json.loads(body)["choices"][0]
        return Completion(
            prompt_tokens=list(choice["prompt_token_ids"]),
            tokens=list(choice["token_ids"]),
            logprobs=[_finite(logprob) for logprob in choice["logprobs"]["token_logprobs"]],
            text=str(choice["text"]),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise ServiceError(f"not the answer to a completion: {_shown(body, serve)}") from error


def differences(completion: Completion, reference: Completion, tolerance: float = TOLERANCE) -> list[str]:
    """Returns, in words, how a completion differs from the reference; nothing if it does not."""
    differing = [
        f"{name} are {_spaced(values)}, and those of one rank are {_spaced(expected)}"
        for name, values, expected in (
            ("prompt_tokens", completion.prompt_tokens, reference.prompt_tokens),
            ("tokens", completion.tokens, reference.tokens),
        )
        if values != expected
    ]
    logprobs, wanted = completion.logprobs, reference.logprobs
    if len(logprobs) != len(wanted):
        return [*differing, f"{len(logprobs)} log-probabilities, and {len(wanted)} of one rank"]
    # Written so that a NaN counts as apart.
    apart = [i for i, pair in enumerate(zip(logprobs, wanted, strict=True)) if not abs(pair[0] - pair[1]) <= tolerance]
    if apart:
        first = apart[0]
        differing.append(
            f"{len(apart)} of {len(logprobs)} log-probabilities are more than {tolerance:g} apart; "
            f"the first, of token {first}: {logprobs[first]} and {wanted[first]}"
        )
    return differing


def largest_difference(completion: Completion, reference: Completion) -> float:
    """Returns the largest difference between log-probabilities of the two."""
    pairs = zip(completion.logprobs, reference.logprobs, strict=True)
    return max((abs(mine - theirs) for mine, theirs in pairs), default=0.0)


def _finite(logprob: float) -> float:
    value = round(float(logprob), 6)
    if not isfinite(value):
        raise ValueError(f"a log-probability is {value}")
    return value


def _shown(body: bytes, serve: Serve) -> str:
    return hide_keys(body.decode(errors="replace"), serve)[:SHOWN_CHARS]


def _spaced(values: Sequence[int]) -> str:
    return " ".join(map(str, values))
