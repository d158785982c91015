"""Run every workload's own check while its streams are slowed down by seeded delays.

    python -m tools.race_check [--device cuda] [--size small] [--seeds 3] [WORKLOAD ...]

First a race is planted, a workload whose streams wait for no event, which must be found: else this
device does not show races under these delays, and a pass would mean nothing.

Each workload runs on the fewest streams it takes and on those recommended, one iteration and then
several back to back, with delays between its launches: a sleeping thread on the CPU, sleep kernels
on an accelerator. On the CPU, launches that meet in memory in no order are looked for as well. Run
it from the top of the tree. Ends with 1 if anything failed; a crash prints every thread's stack.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time

from pytest_hwqueue.devices.discover import choose_devices, open_device
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.errors import CheckFailed, NotApplicable
from pytest_hwqueue.harness.failures import describe_failure
from pytest_hwqueue.workloads.latency_sensitive.graph_subgraphs import GraphSubgraphs
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.workloads.workload import Workload, parameters_for
from tests.workloads.orders import unordered
from tests.workloads.perturbed import HeedlessStream, check_perturbed


def made(found: type[Workload], size: str) -> Workload:
    """A workload with the parameters of a size, not set up."""
    return found(parameters_for(found, size, {}))  # type: ignore[call-arg]


def checked(
    device: Device, found: type[Workload], size: str, streams: int, seeds: int, most_ms: float
) -> str:
    """What went wrong in a workload; empty if nothing did."""
    for seed in range(1, seeds + 1):
        try:
            check_perturbed(device, made(found, size), streams, seed, most_ms=most_ms)
        except NotApplicable as refused:
            return f"not applicable: {refused}"
        except Exception as error:  # every cause becomes a row
            return f"FAILED with seed {seed}: {describe_failure(error).reason}"
    if device.kind == "cpu":
        return "; ".join(f"RACE: {race}" for race in unordered(made(found, size), streams))
    return ""


def planted_race_shows(device: Device, size: str, most_ms: float) -> bool:
    """Whether one of ten seeds makes a result wrong when no event is waited for."""
    for seed in range(1, 11):
        try:
            check_perturbed(
                device, made(GraphSubgraphs, size), 8, seed, most_ms=most_ms, around=HeedlessStream
            )
        except CheckFailed:
            return True
    return False


def main() -> int:
    """Check the workloads asked for; return the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    arguments.add_argument("--device", default="auto", help="auto, cpu, cuda[:N], hip[:N]")
    arguments.add_argument("--size", choices=("tiny", "small", "full"), default="tiny")
    arguments.add_argument("--seeds", type=int, default=3, help="number of seeds, default 3")
    arguments.add_argument("--most-ms", type=float, default=3.0, help="longest delay, default 3 ms")
    options = arguments.parse_args()
    (choice,) = choose_devices(options.device)
    device = open_device(choice.label)
    faulthandler.enable()
    # A row at a time: a crash takes nothing with it that was found before.
    print(f"races on {device.name}: workload, streams, seconds, result", flush=True)
    found = planted_race_shows(device, options.size, options.most_ms)
    print(
        f"{GraphSubgraphs.name} without events, 8:", "found, as it must" if found else "NOT FOUND"
    )
    failed = not found
    for name in options.workloads:
        workload = workload_class(name)
        stream_range = workload.stream_range
        for streams in sorted({stream_range.least, stream_range.recommended}):
            began = time.perf_counter()
            wrong = checked(device, workload, options.size, streams, options.seeds, options.most_ms)
            failed |= bool(wrong) and not wrong.startswith("not applicable")
            seconds = f"{time.perf_counter() - began:.1f}"
            print(f"{name}, {streams}, {seconds} s: {wrong or 'pass'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
