"""Asks the Python probe in a container, and asks again when a question kills it."""

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.log import Log
from pipeline.smoke.containers import PROBE_FOLDER, CommandResult, ProbeContainer
from pipeline.smoke.verdict import (
    Verdict,
    crash_verdict,
    describe_exit,
    emulator_crashed,
    reports_crash,
    verdict_of,
)

MARK = "@@tandem "
ATTEMPTS = 3
PROBE = f"{PROBE_FOLDER}/python_facts.py"
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
NOISE_LINES = 3
"""Lines of other output that a message repeats."""
USUAL_S = {False: 60.0, True: 180.0}
"""Seconds that all checks usually take, without and with an emulator."""
TIMEOUT_S = {False: 600.0, True: 1200.0}
"""Seconds that one run of the probe may take, without and with an emulator."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer to one question about the image."""

    value: Any = None
    """The answer, of the question's own shape (see the function in probes/python_facts.py); None with an error."""
    error: str = ""
    """Why there is no answer, in one line."""
    crashed: bool = False
    """The emulator crashed at this question, every time that it was asked."""


Answers = Mapping[str, ProbeAnswer]
"""Answers by question."""


@dataclass
class _ProbeRun:
    """One run of the probe: what it has written so far."""

    on_answer: Callable[[str, ProbeAnswer], None]
    question: str = ""
    """The question that it works on."""
    pid: int = 0
    crashed: bool = False
    noise: list[str] = field(default_factory=list)

    def read_line(self, text: str) -> None:
        """Reads one line of the probe's output."""
        if not text.startswith(MARK):
            self.crashed = self.crashed or reports_crash(text)
            self.noise = [*self.noise, text][-40:] if text.strip() else self.noise
            return
        record = json.loads(text.removeprefix(MARK))
        if "pid" in record:
            self.pid = record["pid"]
        elif "asked" in record:
            self.question, self.crashed, self.noise = record["asked"], False, []
        else:
            answer = ProbeAnswer(record.get("value"), record.get("error", ""), self.crashed)
            self.on_answer(record["question"], answer)
            self.question = ""


def ask_probe(
    container: ProbeContainer, questions: Sequence[str], *, timeout_s: float, log: Log
) -> dict[str, ProbeAnswer]:
    """Returns the answer to every question; `timeout_s` is for each run of the probe.

    A question at which the emulator crashes is asked ATTEMPTS times. If a question kills the probe in another way, or
    is not answered in time, that is its answer.
    """
    answers: dict[str, ProbeAnswer] = {}
    tries = dict.fromkeys(questions, 0)
    while left := [question for question in questions if question not in answers]:
        start = time.monotonic()

        def record(question: str, answer: ProbeAnswer, start: float = start) -> None:
            tries[question] += 1
            if not answer.crashed or tries[question] >= ATTEMPTS:
                answers[question] = answer
            outcome = "emulator crashed" if answer.crashed else answer.error or "answered"
            log.line(f"probe: {question}: {outcome} after {time.monotonic() - start:.0f} s")

        run = _ProbeRun(record)
        argv = ["python3", PROBE, json.dumps(left)]
        result = container.run(argv, timeout_s=timeout_s, env=ENV, on_line=run.read_line)
        if run.question or not run.pid or result.status != 0:
            _blame(container, run, result, left, record)
    return answers


def _blame(
    container: ProbeContainer,
    run: _ProbeRun,
    result: CommandResult,
    left: Sequence[str],
    record: Callable[[str, ProbeAnswer], None],
) -> None:
    """Records the end of the probe for the question that it worked on, or for all if it worked on none."""
    if result.status is None and run.pid:
        container.run(["bash", "-c", f"kill -9 {run.pid}"], timeout_s=30)
    # The output may hold the words of a crash at an earlier question.
    crashed = run.crashed or emulator_crashed(result.status, "", emulated=result.emulated)
    for question in [run.question] if run.question else left:
        record(question, ProbeAnswer(error=_cause(result, run), crashed=crashed))


def _cause(result: CommandResult, run: _ProbeRun) -> str:
    last = " / ".join(run.noise[-NOISE_LINES:])
    if not run.pid:
        why = result.output.strip()[-300:] or describe_exit(result.status)
        return f"`{shlex.join(['python3', PROBE])}` does not run in a container of the image ({why})"
    if result.status is None:
        return f"no answer in time; its last words: {last or 'none'}"
    return f"the Python process died ({describe_exit(result.status)}); its last words: {last or 'none'}"


def judge_crashes(check: str, answers: Answers, questions: Iterable[str]) -> Verdict | None:
    """Returns the verdict if the emulator crashed at a question and no other question has a fault, else None."""
    asked = {question: answers[question] for question in questions}
    crashed = [question for question, answer in asked.items() if answer.crashed]
    failed = [question for question, answer in asked.items() if answer.error and not answer.crashed]
    return crash_verdict(check, ", ".join(crashed), ATTEMPTS) if crashed and not failed else None


def judge_answer(
    check: str, question: str, answers: Answers, judge_value: Callable[[Any], tuple[Sequence[str], str]]
) -> Verdict:
    """Returns the verdict of a check with one question; `judge_value` makes faults and a summary of its answer."""
    answer = answers[question]
    if answer.crashed:
        return crash_verdict(check, question, ATTEMPTS)
    if answer.error:
        return verdict_of(check, [answer.error], "")
    faults, summary = judge_value(answer.value)
    return verdict_of(check, faults, summary)
