import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pipeline.cluster import causes, deploy, preflight, service_api, start
from pipeline.cluster.deploy import Deployed, DeployedNode
from pipeline.cluster.node_logs import shorten
from pipeline.cluster.probe_output import find_answer
from pipeline.cluster.service_api import Completion
from pipeline.cluster.steps import Report, Step
from pipeline.config.models import Serve
from pipeline.core.errors import HostError, TandemError
from pipeline.probes import serve_node

REFERENCE = Completion(prompt_tokens=[1, 2], tokens=[3, 4], logprobs=[-0.5, -2.0], text="ba")


def _answer(**changes: object) -> Completion:
    return replace(REFERENCE, **changes)


def test_the_same_answer_has_no_differences() -> None:
    assert service_api.differences(_answer(), REFERENCE) == []


def test_rounding_of_another_order_of_sums_is_no_difference() -> None:
    assert service_api.differences(_answer(logprobs=[-0.5009, -1.9991]), REFERENCE) == []


def test_log_probabilities_further_apart_are_named_with_their_token() -> None:
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


def test_the_widest_distance_is_found() -> None:
    assert service_api.largest_difference(_answer(logprobs=[-0.75, -2.5]), REFERENCE) == 0.5


def test_the_apis_answer_is_read() -> None:
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
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(TandemError, match="not the answer to a completion"):
        service_api.parse_completion(body, Serve())


@pytest.mark.parametrize("logprob", ["NaN", "-Infinity", "null"])
def test_a_log_probability_that_is_not_a_number_is_refused_and_shown(logprob: str) -> None:
    body = (
        '{"choices": [{"text": "a", "token_ids": [1], "prompt_token_ids": [1], "logprobs": {"token_logprobs": [%s]}}]}'
    )
    with pytest.raises(TandemError, match=f"not the answer to a completion.*{logprob}"):
        service_api.parse_completion((body % logprob).encode(), Serve())


def test_ranks_are_read_from_a_nodes_own_log() -> None:
    log = (
        "INFO rank 1 in world size 2 is assigned as DP rank 0\n"
        "INFO rank 1 in world size 2 is assigned as DP rank 0\n"
        "INFO rank 0 in world size 1 is assigned as DP rank 0\n"
    )
    assert start.assigned_ranks(log, 2) == (1,)
    assert start.assigned_ranks("", 2) == ()


def test_the_fabric_probes_answer_is_found_among_other_output() -> None:
    said = '[Gloo] Rank 0 is connected\nTANDEM {"rank": 0, "right": true, "mib_per_s": 12.5}\n'
    assert find_answer(said) == {"rank": 0, "right": True, "mib_per_s": 12.5}
    assert find_answer("Traceback") is None


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("(EngineCore pid=531) INFO 11-30 02:58:22 [kv_cache_utils.py:1319] GPU KV cache size", "GPU KV cache size"),
        (
            "(EngineCore pid=5) \x1b[36m(RayWorkerWrapper pid=3)\x1b[0m INFO 11-30 02:58:25 [a.py:8] Warming up",
            "Warming up",
        ),
        ("tandem: ray is up", "tandem: ray is up"),
        ("x" * 70, "x" * 59 + "…"),
    ],
)
def test_a_progress_line_shows_the_message_alone(line: str, wanted: str) -> None:
    assert shorten(line) == wanted


def test_a_failure_names_step_cause_logs_and_remedy() -> None:
    cause = causes.cause_named("nofile")
    error = deploy.DeployError(Step.ENGINE, "head ended", cause, Path("artifacts/logs/x"))
    assert str(error) == f"engine: head ended\n{cause.explanation}\nlogs: artifacts/logs/x"
    assert error.hint == cause.remedy
    assert error.cause == "nofile"


def test_the_verdict_shows_every_step_node_and_the_answer() -> None:
    report = Report(rows=[(Step.ENGINE, "http://127.0.0.1:8000/health says 200", 240.04)])
    deployed = Deployed(
        cluster="local",
        digest="sha256:" + "a" * 64,
        executor="ray",
        endpoint="http://127.0.0.1:8000/v1",
        model="tiny",
        nodes=[DeployedNode("head", "local", "tandem-local-head", {}, [0])],
        prompt="x",
        text="bada",
        tokens=[1],
    )
    text = "\n".join(deploy.render_verdict(deployed, report))
    for wanted in ("240.0", "tandem-local-head", "sha256:" + "a" * 64, "ray", "'x' → 'bada'"):
        assert wanted in text


def test_steps_keep_what_was_found() -> None:
    from pipeline.core.log import NullLog

    report, log = Report(), NullLog()
    with report.step(Step.IMAGE, log) as found:
        found.append("here")
    assert report.rows[0][:2] == ("image", "here")
    assert log.lines[0] == "image …"


def test_a_rays_own_reasons_to_start_again_are_known_to_the_node() -> None:
    found = causes.diagnose([serve_node.TOO_SLOW.join(["The current node ", ""])])
    assert found is not None
    assert found.name == "raylet"
    assert found.may_pass


@pytest.mark.parametrize("security", [["name=seccomp,profile=builtin", "name=cgroupns"], [], None])
def test_an_engine_of_roots_may_publish_any_port(security: list[str] | None) -> None:
    preflight.refuse_privileged_port(80, 1024, {"SecurityOptions": security})


def test_a_rootless_engine_is_told_which_ports_are_roots_before_anything_starts() -> None:
    info = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}
    preflight.refuse_privileged_port(1024, 1024, info)
    preflight.refuse_privileged_port(80, 80, info)
    with pytest.raises(HostError, match=r"serve\.port: 80: only root may use ports below 1024") as refused:
        preflight.refuse_privileged_port(80, 1024, info)
    assert "a port from 1024 up" in refused.value.hint
    assert "ip_unprivileged_port_start=80" in refused.value.hint
