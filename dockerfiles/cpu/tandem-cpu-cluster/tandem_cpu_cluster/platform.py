"""The platform: vLLM's own for CPUs, less the refusal of Ray."""

import os
from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class CpuClusterPlatform(CpuPlatform):
    """CPU nodes that Ray counts as if each had accelerators (`ray start --num-gpus N`)."""

    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Do what vLLM does for CPUs, but keep the executor that was asked for."""
        parallel = vllm_config.parallel_config
        executor = parallel.distributed_executor_backend
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "tandem_cpu_cluster.worker.CpuClusterWorker"
        start_method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")
        if executor == "ray":
            parallel.distributed_executor_backend = "mp"  # else vLLM warns that it falls back to that
        super().check_and_update_config(vllm_config)
        if start_method is not None:
            # vLLM would spawn, and every process import everything again; what was asked for holds here too.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = start_method
        parallel.distributed_executor_backend = executor

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The communicator that knows that ranks may live on several machines."""
        return "tandem_cpu_cluster.communicator.CpuClusterCommunicator"
