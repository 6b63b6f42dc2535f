"""One completion over the OpenAI API, and whether it is the one that it should be."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.models import Serve
from pipeline.core.errors import ConfigError, TandemError

PROMPT = "two wheels, one chain: "
TOKENS = 8
TOLERANCE = 1e-3
"""How far log-probabilities may be apart (float32; ranks sum in another order than one rank does)."""
Answer = dict[str, Any]


def keys(serve: Serve) -> tuple[str, ...]:
    """The API keys that the service takes: those of the last --api-key in serve.args, else VLLM_API_KEY of serve.env.

    So reads vLLM 0.19 its command line. Raises ConfigError for one that no HTTP header can carry.
    """
    given: list[str] = []
    follows = False
    for word in serve.args:
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == "--api-key":
            given, follows = [value] if equals else [], not equals
        elif word.startswith("-"):
            follows = False
        elif follows:
            given.append(word)
    found = tuple(key for key in given or [serve.env.get("VLLM_API_KEY", "")] if key)
    if not all(key.isascii() and key.isprintable() for key in found):
        raise ConfigError(
            "serve.args, serve.env: the API key has characters that no HTTP header can carry",
            hint="choose one of ASCII letters, digits and punctuation",
        )
    return found


def authorization(serve: Serve) -> dict[str, str]:
    """The header with which vLLM lets a request to /v1 pass; the first of several keys will do."""
    found = keys(serve)
    return {"Authorization": f"Bearer {found[0]}"} if found else {}


def hidden(text: str, serve: Serve) -> str:
    """A text without the API keys: vLLM logs its arguments when it starts."""
    for key in sorted(keys(serve), key=len, reverse=True):
        text = text.replace(key, "***")
    return text


def ask(port: int, serve: Serve, *, within: float) -> Answer:
    """A completion of PROMPT, greedy, with log-probabilities: {"prompt_tokens", "tokens", "logprobs", "text"}.

    The service is on 127.0.0.1:port. Raises TandemError if it answers anything else, OSError if it does not answer.
    """
    from http.client import HTTPConnection, HTTPException

    wanted = {
        "model": serve.name,
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
        "logprobs": 1,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    headers = {"Content-Type": "application/json", **authorization(serve)}
    connection = HTTPConnection("127.0.0.1", port, timeout=within)
    try:
        connection.request("POST", "/v1/completions", json.dumps(wanted), headers)
        response = connection.getresponse()
        body = response.read()
    except HTTPException as error:
        raise TandemError(f"the completion broke off: {error!r}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise TandemError(
            f"the service answers {response.status} to a completion: {body[:500].decode(errors='replace')}"
        )
    return read(body)


def read(body: bytes) -> Answer:
    """What matters of the API's answer. Raises TandemError if it is not one."""
    try:
        choice = json.loads(body)["choices"][0]
        return {
            "prompt_tokens": list(choice["prompt_token_ids"]),
            "tokens": list(choice["token_ids"]),
            "logprobs": [round(float(logprob), 6) for logprob in choice["logprobs"]["token_logprobs"]],
            "text": str(choice["text"]),
        }
    except (ValueError, LookupError, TypeError) as error:
        raise TandemError(f"not the answer to a completion: {body[:500].decode(errors='replace')}") from error


def differences(answer: Mapping[str, Any], reference: Mapping[str, Any], tolerance: float = TOLERANCE) -> list[str]:
    """How an answer departs from the reference, in words; empty if it does not."""
    found = [
        f"{what} are {_short(answer[what])}, and those of one rank are {_short(reference[what])}"
        for what in ("prompt_tokens", "tokens")
        if list(answer[what]) != list(reference[what])
    ]
    got, wanted = answer["logprobs"], reference["logprobs"]
    if len(got) != len(wanted):
        return [*found, f"{len(got)} log-probabilities, and {len(wanted)} of one rank"]
    # Written so that a NaN counts as apart.
    apart = [
        nth for nth, (mine, theirs) in enumerate(zip(got, wanted, strict=True)) if not abs(mine - theirs) <= tolerance
    ]
    if apart:
        nth = apart[0]
        found.append(
            f"{len(apart)} of {len(got)} log-probabilities are more than {tolerance:g} apart; "
            f"the first, of token {nth}: {got[nth]} and {wanted[nth]}"
        )
    return found


def widest(answer: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """The largest distance between log-probabilities of the two."""
    pairs = zip(answer["logprobs"], reference["logprobs"], strict=True)
    return max((abs(mine - theirs) for mine, theirs in pairs), default=0.0)


def _short(values: Sequence[int]) -> str:
    return " ".join(map(str, values))
