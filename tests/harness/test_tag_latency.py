from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.program import eager
from pytest_hwqueue.harness.timeline_pass import events_disturb, reference_pass, traced_latencies
from pytest_hwqueue.workloads.latency_sensitive.hetero_kernels import (
    HeteroKernels,
    HeteroParameters,
)
from pytest_hwqueue.workloads.workload import Setup

PLAN = LoopPlan(iterations=6, warmup=1, max_time_ns=10**12, sync_mode="per_iteration")


class _Connected:
    def __init__(self, connections: int | None) -> None:
        self.connections = connections


@pytest.mark.parametrize(
    ("connections", "streams", "disturbs"), [(8, 8, False), (8, 9, True), (None, 1000, False)]
)
def test_events_disturb_beyond_the_hardware_connections(
    connections: int | None, streams: int, disturbs: bool
) -> None:
    reason = events_disturb(cast(Device, _Connected(connections)), streams)
    assert (reason is not None) == disturbs
    if reason is not None:
        assert f"{streams} streams share {connections} hardware connections" in reason


def test_traced_latencies_have_every_tagged_launch_of_every_iteration() -> None:
    device = HostDevice()
    workload = HeteroKernels(HeteroParameters(mm_dim=16))
    with device.open_streams(5) as pool:
        workload.setup(Setup(device, 5, 0))
        program = eager(device, workload.iterate, tagged=False, no_events="for the test")
        found, iterations = traced_latencies(pool, program, replace(PLAN, iteration_ns=1))
        assert iterations == 6
        assert {tag: len(values) for tag, values in found.items()} == {"large": 12, "small": 18}
        assert all(value > 0 for values in found.values() for value in values)
        # One launch alone, so many times as the plan says, whichever way it is timed.
        alone = workload.references()["small_alone"]
        for traced in (False, True):
            reference = eager(device, alone, tagged=not traced)
            passed = reference_pass(device, pool, reference, PLAN, traced=traced)
            assert len(passed.launches_ns) == len(passed.iterations_ns) == 6


def test_traced_latencies_keep_to_a_quarter_of_the_time() -> None:
    device = HostDevice()
    workload = HeteroKernels(HeteroParameters(mm_dim=16))
    with device.open_streams(2) as pool:
        workload.setup(Setup(device, 2, 0))
        program = eager(device, workload.iterate, tagged=False)
        plan = replace(PLAN, iterations=1000, max_time_ns=12_000, iteration_ns=1000)
        found, iterations = traced_latencies(pool, program, plan)
        assert len(found["small"]) == iterations == 3
