"""One rank of a collective over the backend that the engine will use: checks the sum, and measures its speed.

`python3 serve_fabric.py RANK WORLD HEAD PORT BACKEND`; prints one line of JSON: {"rank", "right", "mib_per_s"}. The
bandwidth is what one rank gets through an all_reduce of 4 MiB: bytes of the tensor by seconds, the best of a few.
"""

import json
import sys
import time
from datetime import timedelta

WORDS = 1 << 20
ROUNDS = 5
TIMEOUT = timedelta(seconds=240)


def main(rank: int, world: int, head: str, port: int, backend: str) -> dict[str, object]:
    """Joins the other ranks, sums, and compares the sum with the right one."""
    import torch  # type: ignore[import-not-found]  # only images have it
    import torch.distributed as dist  # type: ignore[import-not-found]

    dist.init_process_group(backend, init_method=f"tcp://{head}:{port}", rank=rank, world_size=world, timeout=TIMEOUT)
    right, best = True, float("inf")
    for turn in range(ROUNDS):
        tensor = torch.full((WORDS,), float(rank + 1 + turn))
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        best = min(best, time.perf_counter() - start)
        wanted = world * (world + 1) / 2 + world * turn
        right = right and bool((tensor == wanted).all())
    dist.destroy_process_group()
    return {"rank": rank, "right": right, "mib_per_s": round(4 / best, 1)}


if __name__ == "__main__":
    answer = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
    print("TANDEM " + json.dumps(answer), flush=True)
