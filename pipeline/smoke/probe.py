"""Asks the Python probe inside a container, and goes on asking when a question kills it."""

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.log import Log
from pipeline.smoke.containers import INSIDE, Box, Said
from pipeline.smoke.verdict import Verdict, crash_verdict, emulator_crashed, emulator_speaks, ending

MARK = "@@tandem "
ATTEMPTS = 3
PROBE = f"{INSIDE}/python_facts.py"
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
TAIL = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What the probe said to one question: a value, or an error in one line; `crashed`: the emulator's fault."""

    value: Any = None
    error: str = ""
    crashed: bool = False


@dataclass
class _Round:
    """One life of the probe."""

    heard: Callable[[str, Answer], None]
    asked: str = ""
    pid: int = 0
    crashed: bool = False
    noise: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        """One line of the probe's output."""
        if not text.startswith(MARK):
            self.crashed = self.crashed or emulator_speaks(text)
            self.noise = [*self.noise, text][-40:] if text.strip() else self.noise
            return
        said = json.loads(text.removeprefix(MARK))
        if "pid" in said:
            self.pid = said["pid"]
        elif "asked" in said:
            self.asked, self.crashed, self.noise = said["asked"], False, []
        else:
            self.heard(said["question"], Answer(said.get("value"), said.get("error", ""), self.crashed))
            self.asked = ""


def ask(box: Box, questions: Sequence[str], *, within: float, log: Log) -> dict[str, Answer]:
    """The answer to every question; `within` is in seconds for each life of the probe.

    A question at which the emulator crashed is asked ATTEMPTS times in all. One that kills the probe otherwise, or at
    which it hangs, is answered with that.
    """
    answers: dict[str, Answer] = {}
    tries = dict.fromkeys(questions, 0)
    while left := [question for question in questions if question not in answers]:
        begun = time.monotonic()

        def heard(question: str, answer: Answer, since: float = begun) -> None:
            tries[question] += 1
            if not answer.crashed or tries[question] >= ATTEMPTS:
                answers[question] = answer
            outcome = "emulator crashed" if answer.crashed else answer.error or "answered"
            log.line(f"probe: {question}: {outcome} after {time.monotonic() - since:.0f} s")

        life = _Round(heard)
        said = box.run(["python3", PROBE, json.dumps(left)], within=within, env=ENV, heard=life.line)
        if life.asked or not life.pid or said.status != 0:
            _died(box, life, said, left, heard)
    return answers


def _died(box: Box, life: _Round, said: Said, left: Sequence[str], heard: Callable[[str, Answer], None]) -> None:
    """Blame the question that the probe was at when it ended; without any, all of them."""
    if said.status is None and life.pid:
        box.run(["bash", "-c", f"kill -9 {life.pid}"], within=30)
    # Not by all of its output: the emulator may have crashed at an earlier question.
    crashed = life.crashed or emulator_crashed(said.status, "", emulated=said.emulated)
    for question in [life.asked] if life.asked else left:
        heard(question, Answer(error=_cause(said, life), crashed=crashed))


def _cause(said: Said, life: _Round) -> str:
    last = " / ".join(life.noise[-TAIL:])
    if not life.pid:
        why = said.text.strip()[-300:] or ending(said.status)
        return f"`{shlex.join(['python3', PROBE])}` does not run in a container of the image ({why})"
    if said.status is None:
        return f"no answer in time; its last words: {last or 'none'}"
    return f"the Python process died ({ending(said.status)}); its last words: {last or 'none'}"


def crashed(check: str, answers: Mapping[str, Answer], asked: Iterable[str]) -> Verdict | None:
    """The emulator's verdict if it crashed at a question of the check and no other question shows a fault."""
    at = [question for question in asked if answers[question].crashed]
    failed = [question for question in asked if answers[question].error and not answers[question].crashed]
    return crash_verdict(check, ", ".join(at), ATTEMPTS) if at and not failed else None
