import re

import pytest

from pipeline.cluster import causes
from pipeline.probes import serve_node

SAID = {
    "qemu-crash": "qemu: uncaught target signal 11 (Segmentation fault) - core dumped",
    "platform": "exec /usr/bin/python3: exec format error",
    "port": "Bind for 127.0.0.1:8000 failed: port is already allocated",
    "nofile": "OSError: [Errno 24] Too many open files",
    "token": "ray.exceptions.AuthenticationError: Token authentication is enabled but no token was found",
    "ray-version": "RuntimeError: Version mismatch: The cluster was started with:\n Ray: 2.60.0",
    "raylet": "Exception: The current node timed out during startup. This could happen because ...",
    "ray-lost": "RuntimeError: No node info found matching attributes: None",
    "worker-never-joined": "rpc_client.h:153: Failed to connect to GCS at address head:6379 within 5 seconds.",
    "placement": "ValueError: Cannot provide a placement group requiring 2 GPUs",
    "ray-on-cpu": "WARNING ray is not supported on CPU, fallback to mp distributed executor backend.",
    "shared-memory": "RuntimeError: open shm in SHMManager failed",
    "interface": "RuntimeError: [enforce fail at device.cc:208] Unable to find address for: enp1s0f1np1",
    "peer-lost": "torch.distributed.DistStoreError: Timed out after 601 seconds. 1/2 clients joined.",
    "unknown-model": "model type `qwen3_5_moe` but Transformers does not recognize this architecture.",
    "model-missing": "OSError: /models/x does not appear to have a file named config.json",
    "kv-memory": "ValueError: No available memory for the cache blocks.",
    "memory": "torch.OutOfMemoryError: CUDA out of memory",
    "arguments": "vllm: error: unrecognized arguments: --tensor-paralel-size",
    "engine-core": "RuntimeError: Engine core initialization failed. See root cause above.",
}


@pytest.mark.parametrize("name", [cause.name for cause in causes.CAUSES])
def test_each_cause_is_found_in_a_log_that_shows_it(name: str) -> None:
    found = causes.diagnose(["nothing of note", f"INFO all is well\n{SAID[name]}\nbye"])
    assert found is not None
    assert found.name == name


def test_every_cause_says_what_to_do() -> None:
    for cause in (*causes.CAUSES, causes.KILLED, causes.WRONG_ANSWER):
        assert cause.explanation
        assert cause.remedy
        re.compile(cause.pattern)


def test_names_of_causes_are_unique() -> None:
    names = [cause.name for cause in causes.CAUSES]
    assert len(names) == len(set(names))


def test_a_healthy_log_has_no_cause() -> None:
    assert causes.diagnose(["INFO Started server process", "INFO Application startup complete."]) is None


def test_a_warning_about_open_files_is_not_a_cause() -> None:
    warning = "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing"
    assert causes.diagnose([warning]) is None


def test_a_slow_placement_alone_is_not_a_cause() -> None:
    assert causes.diagnose(["INFO Waiting for creating a placement group of specs for 10 seconds."]) is None


def test_a_kill_for_lack_of_memory_needs_no_words() -> None:
    assert causes.diagnose([""], oom_killed=True) is causes.KILLED
    assert causes.diagnose([""], exit_code=137) is causes.KILLED


def test_the_particular_cause_comes_before_the_general_one() -> None:
    log = "open shm in SHMManager failed\nRuntimeError: Engine core initialization failed."
    found = causes.diagnose([log])
    assert found is not None
    assert found.name == "shared-memory"


def test_last_words_prefer_errors() -> None:
    assert causes.last_words("fine\nValueError: no\nfine again\n") == "ValueError: no"


def test_last_words_are_the_last_lines_where_nothing_is_an_error() -> None:
    assert causes.last_words("one\n\ntwo\nthree\n", 2) == "two\nthree"


def test_a_raylet_that_was_too_slow_has_a_cause_that_may_pass() -> None:
    found = causes.diagnose([serve_node.TOO_SLOW.join(["The current node ", ""])])
    assert found is not None
    assert found.name == "raylet"
    assert found.may_pass
