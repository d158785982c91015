"""How much longer an iteration takes while it is traced: traced and untraced blocks in turn.

    python -m tools.tracing_cost [--device cuda] [--size full] [--streams 2] [--pairs 12] [NAME ...]

Each pair is a block of untraced iterations and one of traced ones, in alternating order, on the
same streams in one process; a block counts as its median. The ratio is the median of the pairs',
its interval holds with 95 %, and for the workload that is named. Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
import statistics

from pytest_hwqueue.causes.traced_pass import TracePlan, traced_pass
from pytest_hwqueue.devices.discover import choose_devices, open_device
from pytest_hwqueue.devices.protocol import Device, StreamPool
from pytest_hwqueue.devices.telemetry import TelemetryLog, Unavailable
from pytest_hwqueue.harness.closed_loop import LoopPlan, measure, warm_up
from pytest_hwqueue.harness.program import Program, eager
from pytest_hwqueue.metrics.latency import quantile_interval
from pytest_hwqueue.metrics.numbers import figure
from pytest_hwqueue.workloads.registry import workload_class
from pytest_hwqueue.workloads.workload import Setup, parameters_for

_BLOCK = 20
_UNREAD = Unavailable("telemetry is not what this measures")


def ratios(
    device: Device, pool: StreamPool, program: Program, pairs: int
) -> tuple[list[float], str]:
    """Return traced over untraced of each pair, and the level of the traces."""
    plan = LoopPlan(
        iterations=_BLOCK, warmup=10, max_time_ns=60_000_000_000, sync_mode="per_iteration"
    )
    warm_up(device, pool, program, plan)
    found: list[float] = []
    level = ""
    for pair in range(pairs):
        plain_ns = traced_ns = 0.0
        for kind in ("plain", "traced") if pair % 2 else ("traced", "plain"):
            if kind == "plain":
                result = measure(device, pool, program, plan, lambda done: None)
                plain_ns = statistics.median(result.host_ns)
                continue
            log = TelemetryLog(_UNREAD, clock_ns=device.clock_ns)
            passed = traced_pass(
                device, pool, program, TracePlan(_BLOCK, plan.max_time_ns), log, lambda done: None
            )
            level = passed.tracing.level
            lengths = (one.finished_ns - one.started_ns for one in passed.requests)
            traced_ns = statistics.median(lengths)
        found.append(traced_ns / plain_ns)
    return found, level


def main() -> None:
    """Print a row for each workload."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument(
        "workloads", nargs="*", default=["tiny_kernel_stress", "llm_decode"], metavar="NAME"
    )
    arguments.add_argument("--device", default="auto", help="auto, cpu, cuda[:N], hip[:N]")
    arguments.add_argument("--size", choices=("tiny", "small", "full"), default="tiny")
    arguments.add_argument("--streams", type=int, default=1)
    arguments.add_argument("--pairs", type=int, default=12)
    options = arguments.parse_args()
    (choice,) = choose_devices(options.device)
    device = open_device(choice.label)
    print(f"On {device.name}, {options.streams} streams, size {options.size}:")
    for name in options.workloads:
        found = workload_class(name)
        least, most = found.stream_range.least, found.stream_range.most
        if not least <= options.streams <= most:
            arguments.error(f"{name} takes {least} to {most} streams, not {options.streams}")
        workload = found(parameters_for(found, options.size, {}))  # type: ignore[call-arg]
        priorities = [0] * options.streams
        with device.open_streams(options.streams, priorities, gradients=workload.gradients) as pool:
            workload.setup(Setup(device, options.streams, seed=0))
            program = eager(device, workload.iterate, tagged=False)
            each, level = ratios(device, pool, program, options.pairs)
        low, high = quantile_interval(sorted(each), 0.5, 0.95)
        print(
            f"{name}: traced ({level}) takes {figure(statistics.median(each))} times as long as "
            f"untraced [{figure(low)}, {figure(high)}], {len(each)} pairs of {_BLOCK} iterations"
        )


if __name__ == "__main__":
    main()
