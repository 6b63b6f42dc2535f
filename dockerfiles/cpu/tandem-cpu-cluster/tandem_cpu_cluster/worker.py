"""The worker: vLLM's own for CPUs, with the device that Ray's compiled graph asserts."""

import torch
from vllm.v1.worker.cpu_worker import CPUWorker


class CpuClusterWorker(CPUWorker):
    """A CPU worker that says which device it runs on, as GPU workers do."""

    def init_device(self) -> None:
        """Set the worker up; `RayWorkerWrapper.setup_device_if_necessary` asks for `device`."""
        super().init_device()
        self.device = torch.device("cpu")
