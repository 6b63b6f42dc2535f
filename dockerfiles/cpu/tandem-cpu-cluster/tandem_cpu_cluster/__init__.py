"""A vLLM platform under which CPU nodes take the very command line of a GPU cluster.

Written against vLLM 0.19.1. Inactive unless TANDEM_CPU_CLUSTER=1, so an image that holds it behaves as if it did not.
"""

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def active() -> bool:
    """Whether this process was asked to take the platform."""
    return os.environ.get("TANDEM_CPU_CLUSTER") == "1"


def register() -> str | None:
    """The platform's class for vLLM, or nothing where it was not asked for."""
    return "tandem_cpu_cluster.platform.CpuClusterPlatform" if active() else None


def settle() -> None:
    """Have vLLM look at a model's class in the process that asks.

    It starts a process for that, so as not to initialise CUDA. Here is none to initialise, and the process costs
    another import of everything: more than a minute where an emulator runs it.
    """
    if not active():
        return
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = at_once  # noqa: SLF001  # vLLM has no option for it


def at_once(look: Callable[[], T]) -> T:
    """What stands in for a run in another process."""
    return look()
