"""The tuple of checks, and how they get their answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from pipeline.core.log import Log, NullLog
from pipeline.probes import python_facts
from pipeline.smoke import smoke
from pipeline.smoke.check import Check, Expectations
from pipeline.smoke.containers import ContainerError, ContainerFactory
from pipeline.smoke.probe import Answers, ProbeAnswer
from pipeline.smoke.verdict import Verdict, verdict_of
from tests.unit.smoke.expected import debian_image, expected_image

NOTHING = {"ray": False, "launcher": False}
EVERYTHING = {"imports": ("ray",), "architectures": ("Qwen",), "config": "model"}


def names(**keys: Any) -> list[str]:
    return [check.name for check in smoke.CHECKS if check.asked(debian_image(keys))]


def test_only_the_checks_that_image_yaml_asks_for_run() -> None:
    assert names(**NOTHING) == ["versions", "consistency"]
    assert names() == ["versions", "consistency", "launcher", "ray"]
    assert names(**EVERYTHING) == ["versions", "consistency", "imports", "registry", "config", "launcher", "ray"]


def test_every_check_has_a_name_and_answers_of_its_own() -> None:
    experiments = [name for check in smoke.CHECKS for name in check.experiments]
    assert len({check.name for check in smoke.CHECKS}) == len(smoke.CHECKS)
    assert len(set(experiments)) == len(experiments)


@pytest.mark.parametrize("check", smoke.CHECKS, ids=lambda check: str(check.name))
def test_the_probe_knows_every_question(check: Check) -> None:
    kinds = {question.partition(":")[0] for question in check.questions(debian_image(EVERYTHING))}
    assert kinds <= {*python_facts.QUESTIONS}
    assert kinds.isdisjoint(check.experiments)


class Factory(ContainerFactory):
    """A factory whose containers do not start."""

    emulated = False

    def __init__(self) -> None:
        pass

    @contextmanager
    def start(self, *_: object, **__: object) -> Iterator[Any]:
        raise ContainerError("no bash")
        yield


def judge(_expected: Expectations, answers: Answers) -> Verdict:
    return verdict_of("own", [answer.error for answer in answers.values() if answer.error], "fine")


def own_check(experiment: Any) -> Check:
    return Check(name="own", judge=judge, experiments={"tried": experiment})


def test_a_container_that_does_not_start_fails_the_checks_that_need_it_and_no_other() -> None:
    def succeed(_factory: ContainerFactory, _log: Log) -> ProbeAnswer:
        return ProbeAnswer("done")

    checks = [*smoke.CHECKS[:2], own_check(succeed)]
    verdicts = smoke._judge_all(Factory(), checks, expected_image(), {}, NullLog())
    assert [(verdict.check, *verdict.details) for verdict in verdicts] == [
        ("versions", "no bash"),
        ("consistency", "no bash"),
        ("own", "fine"),
    ]


def test_an_experiment_whose_container_does_not_start_is_answered_with_that() -> None:
    def fail(factory: ContainerFactory, _log: Log) -> ProbeAnswer:
        with factory.start("x"):
            return ProbeAnswer("done")

    log = NullLog()
    answer = smoke._try(fail, cast(ContainerFactory, Factory()), log)
    assert answer == ProbeAnswer(error="no bash")
    assert log.lines == ["no bash"]
