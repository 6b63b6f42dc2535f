"""What a completion is, and when it agrees with that of one rank."""

import json

import pytest
from msgspec.structs import replace

from pipeline.cluster import service_api
from pipeline.cluster.service_api import Completion
from pipeline.config.models import Serve
from pipeline.core.errors import TandemError

REFERENCE = Completion(prompt_tokens=[1, 2], tokens=[3, 4], logprobs=[-0.5, -2.0], text="ba")


def _answer(**changes: object) -> Completion:
    return replace(REFERENCE, **changes)


def test_the_same_answer_has_no_differences() -> None:
    assert service_api.differences(_answer(), REFERENCE) == []


def test_rounding_by_another_order_of_sums_is_not_a_difference() -> None:
    assert service_api.differences(_answer(logprobs=[-0.5009, -1.9991]), REFERENCE) == []


def test_log_probabilities_that_are_too_far_apart_are_named_with_their_token() -> None:
    (said,) = service_api.differences(_answer(logprobs=[-0.5, -2.0011]), REFERENCE)
    assert said.startswith(
        "1 of 2 log-probabilities are more than 0.001 apart; the first, of token 1: -2.0011 and -2.0"
    )


def test_another_token_is_a_difference() -> None:
    assert service_api.differences(_answer(tokens=[3, 5]), REFERENCE) == [
        "tokens are 3 5, and those of one rank are 3 4"
    ]


def test_a_nan_is_a_difference() -> None:
    assert len(service_api.differences(_answer(logprobs=[float("nan"), -2.0]), REFERENCE)) == 1


def test_a_missing_log_probability_is_a_difference() -> None:
    assert service_api.differences(_answer(logprobs=[-0.5]), REFERENCE) == ["1 log-probabilities, and 2 of one rank"]


def test_the_largest_difference_is_found() -> None:
    assert service_api.largest_difference(_answer(logprobs=[-0.75, -2.5]), REFERENCE) == 0.5


def test_the_answer_of_the_api_is_parsed() -> None:
    body = {
        "choices": [
            {
                "text": " ba",
                "token_ids": [3],
                "prompt_token_ids": [1],
                "logprobs": {"token_logprobs": [-0.12345678], "tokens": [" ba"]},
            }
        ]
    }
    answer = service_api.parse_completion(json.dumps(body).encode(), Serve())
    assert answer == Completion(prompt_tokens=[1], tokens=[3], logprobs=[-0.123457], text=" ba")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices": []}', b'{"choices": [{"token_ids": null}]}'])
def test_a_body_that_is_not_a_completion_is_refused(body: bytes) -> None:
    with pytest.raises(TandemError, match="not the answer to a completion"):
        service_api.parse_completion(body, Serve())


@pytest.mark.parametrize("logprob", ["NaN", "-Infinity", "null"])
def test_a_log_probability_that_is_not_a_number_is_refused_and_shown(logprob: str) -> None:
    body = (
        '{"choices": [{"text": "a", "token_ids": [1], "prompt_token_ids": [1], "logprobs": {"token_logprobs": [%s]}}]}'
    )
    with pytest.raises(TandemError, match=f"not the answer to a completion.*{logprob}"):
        service_api.parse_completion((body % logprob).encode(), Serve())
