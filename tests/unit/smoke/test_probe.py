"""How the probe is asked again when it dies."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from pipeline.core.log import NullLog
from pipeline.smoke.containers import CommandResult, ProbeContainer
from pipeline.smoke.probe import MARK, ask_probe

SEGFAULT = "qemu: uncaught target signal 11 (Segmentation fault) - core dumped"


class ScriptedContainer:
    """Plays the probe: what each question does to it is in a table, by question and try."""

    def __init__(self, **does: list[str]) -> None:
        self.emulated = True
        self.does = does
        self.commands: list[list[str]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> CommandResult:
        self.commands.append(list(argv))
        if argv[0] != "python3" or on_line is None:
            return CommandResult(0, "")
        if "no python" in self.does:
            return CommandResult(127, 'exec: "python3": executable file not found in $PATH')
        on_line(MARK + json.dumps({"pid": 9}))
        for question in json.loads(argv[-1]):
            on_line(MARK + json.dumps({"asked": question}))
            turns = self.does.get(question, [])
            turn = turns.pop(0) if turns else "answers"
            if turn == "hangs":
                return CommandResult(None, "")
            if turn == "dies":
                on_line("Fatal error")
                return CommandResult(1, f"{SEGFAULT} earlier\nFatal error", self.emulated)
            if turn == "segfaults":
                return CommandResult(139, "", self.emulated)
            if turn == "aborts after the emulator's words":
                on_line(SEGFAULT)
                return CommandResult(134, SEGFAULT, self.emulated)
            if turn == "mutters":
                on_line(SEGFAULT)
            on_line("noise of a library")
            on_line(MARK + json.dumps({"question": question, "value": question.upper()}))
        return CommandResult(0, "")

    def asked(self) -> list[list[str]]:
        return [json.loads(argv[-1]) for argv in self.commands if argv[0] == "python3"]


def answers(container: ScriptedContainer, *questions: str) -> dict[str, tuple[object, bool]]:
    result = ask_probe(cast(ProbeContainer, container), questions, timeout_s=1, log=NullLog())
    return {question: (answer.value or answer.error, answer.crashed) for question, answer in result.items()}


def test_one_life_answers_everything() -> None:
    container = ScriptedContainer()
    assert answers(container, "a", "b") == {"a": ("A", False), "b": ("B", False)}
    assert container.asked() == [["a", "b"]]


def test_a_question_that_kills_the_probe_is_answered_with_that_and_the_rest_is_asked() -> None:
    container = ScriptedContainer(a=["dies"])
    result = answers(container, "a", "b")
    assert result["a"] == ("the Python process died (exit status 1); its last words: Fatal error", False)
    assert result["b"] == ("B", False)
    assert container.asked() == [["a", "b"], ["b"]]


def test_a_crash_of_the_emulator_is_tried_again() -> None:
    container = ScriptedContainer(b=["segfaults"])
    assert answers(container, "a", "b") == {"a": ("A", False), "b": ("B", False)}
    assert container.asked() == [["a", "b"], ["b"]]


def test_after_two_more_tries_the_crash_is_the_answer() -> None:
    container = ScriptedContainer(a=["segfaults"] * 3)
    result = answers(container, "a", "b")
    assert result["a"][1]
    assert result["b"] == ("B", False)
    assert container.asked() == [["a", "b"], ["a", "b"], ["a", "b"], ["b"]]


def test_without_an_emulator_a_segfault_is_the_answer_at_once_and_names_the_signal() -> None:
    container = ScriptedContainer(a=["segfaults"] * 3)
    container.emulated = False
    result = answers(container, "a", "b")
    assert result["a"] == ("the Python process died (signal 11 (SIGSEGV)); its last words: none", False)
    assert result["b"] == ("B", False)
    assert container.asked() == [["a", "b"], ["b"]]


def test_the_emulators_own_words_prove_a_crash_without_an_emulator_too() -> None:
    container = ScriptedContainer(a=["aborts after the emulator's words"])
    container.emulated = False
    assert answers(container, "a") == {"a": ("A", False)}
    assert container.asked() == [["a"], ["a"]]


def test_an_answer_beside_the_words_of_a_crash_is_not_a_pass() -> None:
    container = ScriptedContainer(a=["mutters"] * 3)
    assert answers(container, "a") == {"a": ("A", True)}


def test_a_question_without_end_is_stopped() -> None:
    container = ScriptedContainer(a=["hangs"])
    result = answers(container, "a", "b")
    assert result["a"] == ("no answer in time; its last words: none", False)
    assert result["b"] == ("B", False)
    assert ["bash", "-c", "kill -9 9"] in container.commands


def test_an_image_without_python_answers_nothing_and_says_so() -> None:
    result = answers(ScriptedContainer(**{"no python": []}), "a", "b")
    assert "executable file not found" in str(result["a"][0])
    assert "executable file not found" in str(result["b"][0])
