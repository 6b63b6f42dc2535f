"""The communicator: vLLM's own for CPUs, with shared memory only where memory is shared."""

import socket

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class CpuClusterCommunicator(CpuCommunicator):
    """vLLM takes ranks with one init method for ranks of one machine; over Ray they have one on several."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        hosts = [""] * self.world_size
        torch.distributed.all_gather_object(hosts, socket.gethostname(), group=self.device_group)
        return len(set(hosts)) == 1 and super()._all_group_ranks_share_shm_group_name()
