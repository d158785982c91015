"""Plans how many iterations a cell measures: n is set before the run, never by a clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.program import tags_of_iteration
from pytest_hwqueue.metrics.latency import CONFIDENCE, minimum_samples
from pytest_hwqueue.metrics.timeline import split_tag
from pytest_hwqueue.workloads.workload import Workload

LEAST_ITERATIONS = 50
"""Intervals are formed over iterations, and throughput needs as many for one."""


def samples_per_iteration(workload: Workload, streams: Sequence[Stream]) -> int:
    """Return how many samples of its primary latency one iteration of a workload gives.

    Nothing runs: the launches are taped and counted.

    Raises:
        ValueError: if no launch of an iteration is such a sample.

    """
    primary = workload.primary
    if primary.per == "iteration":
        return 1
    tags = [split_tag(tag) for tag in tags_of_iteration(streams, workload.iterate)]
    if primary.per == "launch":
        count = sum(name == primary.name for name, _ in tags)
    else:
        count = len({request for _, request in tags if request})
    if not count:
        raise ValueError(
            f"{workload.name}: no launch of an iteration is a {primary.name}, its primary latency"
        )
    return count


def traced_iterations(workload: Workload, streams: Sequence[Stream], samples: int) -> int:
    """Return the number of iterations of a traced pass.

    If an iteration's samples are alike, all of them may say no more than one: then there are as
    many iterations as P99's interval needs samples, if that many are requested.
    """
    least = min(samples, minimum_samples(0.99, CONFIDENCE)) if workload.primary.alike else 1
    return max(least, math.ceil(samples / samples_per_iteration(workload, streams)))


def planned_iterations(workload: Workload, streams: Sequence[Stream], samples: int) -> int:
    """Return the iterations needed for ``samples`` of the primary latency, at least 50."""
    return max(LEAST_ITERATIONS, traced_iterations(workload, streams, samples))


def time_shortfall(plan: LoopPlan, iteration_ns: int) -> str:
    """Return text saying that the planned iterations do not fit into the time, or nothing.

    Args:
        plan: of the cell.
        iteration_ns: duration of an iteration at the end of the warm-up.

    """
    expected_ns = plan.iterations * iteration_ns
    if expected_ns <= plan.max_time_ns:
        return ""
    fitting = max(1, plan.max_time_ns // max(1, iteration_ns))
    return (
        f"{plan.iterations} iterations would take {expected_ns / 1e9:.3g} s: about {fitting} fit "
        f"into {plan.max_time_ns / 1e9:.3g} s (--hwq-max-time)"
    )
