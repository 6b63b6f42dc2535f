"""The faults of an ENTRYPOINT, by what a command under it has reported."""

import pytest

from pipeline.smoke.entrypoint import ARGUMENTS, ENV, EntrypointRun, find_faults

CONFIG = {"WorkingDir": "/workspace/vllm", "User": ""}


def reports(*arguments: str, **changed: str) -> list[tuple[str, str]]:
    escaped = [argument.replace("\\", "\\\\").replace("\n", "\\n") for argument in arguments or ARGUMENTS]
    values = {"folder": "/workspace/vllm", "user": "0", **ENV, "parent": "none", "ready": "yes", "signal": "TERM"}
    return [*(("argument", argument) for argument in escaped), *{**values, **changed}.items()]


def faults(*arguments: str, **changed: str) -> list[str]:
    return list(find_faults(EntrypointRun(reports(*arguments, **changed), "", crashed=False), CONFIG))


def test_a_command_that_is_run_as_it_was_given_has_no_fault() -> None:
    assert faults() == []
    assert faults(parent="tini") == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"folder": "/app"}, "runs the command in /app, not in WORKDIR /workspace/vllm"),
        ({"user": "1000"}, "runs the command as user 1000, not as root"),
        ({"VLLM_HOST_IP": ""}, "hides the variable VLLM_HOST_IP"),
        ({"signal": "", "parent": "bash"}, "does not pass signals on to the command, which runs below `bash`"),
    ],
)
def test_each_difference_is_a_fault(changed: dict[str, str], words: str) -> None:
    (fault,) = faults(**changed)
    assert words in fault


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (" ".join(ARGUMENTS).split(), "'two words' arrives as 'two'"),
        (ARGUMENTS[:-1], "7 arrive as 6"),
        ([*ARGUMENTS, "more"], "7 arrive as 8"),
    ],
)
def test_changed_arguments_are_shown_with_an_example(arguments: list[str], words: str) -> None:
    (fault,) = faults(*arguments)
    assert fault == f"changes the arguments of the command: {words}"


def test_a_command_that_never_ran_is_described_by_what_the_container_did() -> None:
    run = EntrypointRun([], "the container ended with exit status 3 (serving)", crashed=False)
    (fault,) = find_faults(run, CONFIG)
    assert fault == "ignores the command it is given: the container ended with exit status 3 (serving)"


def test_an_image_of_another_user_is_not_the_entrypoints_fault() -> None:
    run = EntrypointRun(reports(user="1000"), "", crashed=False)
    assert list(find_faults(run, {**CONFIG, "User": "app"})) == []
