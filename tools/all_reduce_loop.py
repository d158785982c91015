"""Bus bandwidth of a plain loop of all_reduce, to hold what the suite reports against.

    torchrun --standalone --nproc-per-node=2 tools/all_reduce_loop.py [--bytes 134217728 ...]

One communicator, one tensor, nothing beside it and nothing of this package: each repetition is
timed by the wall clock around a number of collectives and one wait for the device, and the slowest
rank counts. Bus bandwidth as nccl-tests define it: 2 (n - 1) / n of the array's bytes per second.
On a CPU it takes gloo.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

_TOGETHER = 10


def repetition_s(tensor: torch.Tensor) -> float:
    """Seconds of one collective on the slowest rank."""
    dist.barrier()
    _wait(tensor)
    begin = time.perf_counter()
    for _ in range(_TOGETHER):
        dist.all_reduce(tensor)
    _wait(tensor)
    took = torch.tensor((time.perf_counter() - begin) / _TOGETHER, device=tensor.device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def _wait(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure and print a line per size, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << 24, 1 << 27])
    parser.add_argument("--repetitions", type=int, default=30)
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
        dist.init_process_group("nccl", device_id=place)
    else:
        place = torch.device("cpu")
        dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    for size in arguments.bytes:
        tensor = torch.zeros(size // 4, device=place)
        for _ in range(3):
            repetition_s(tensor)
        took = sorted(repetition_s(tensor) for _ in range(arguments.repetitions))
        if dist.get_rank() == 0:
            bandwidth = [2 * (ranks - 1) / ranks * size / 1e9 / seconds for seconds in took]
            median = statistics.median(bandwidth)
            print(
                f"{ranks} ranks, {size} bytes: median {1e3 * statistics.median(took):.4g} ms, "
                f"{median:.4g} GB/s on the bus, from {bandwidth[-1]:.4g} to {bandwidth[0]:.4g}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
