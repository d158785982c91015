"""What training and pipelines wait for: how many samples an iteration gives, and in which time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from pytest_hwqueue.engine.cell.program import Program, eager, graph
from pytest_hwqueue.engine.cell.runner import planned_iterations, samples_per_iteration
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.registry import WORKLOADS
from pytest_hwqueue.parts.workloads.workload import Setup, parameters_for
from pytest_hwqueue.plugin.cells import auto_dispatch

from .cells import measured
from .everyone import CASES, EVERYONE, small
from .perturbed import group_for

# Where measuring takes longest: with most streams, or with the fewest.
SLOWEST = [
    ("graph_subgraphs", 64),
    ("torch_compile", 16),
    ("comms_compute_overlap", 32),
    ("moe", 4),
    ("fsdp_tp", 16),
    pytest.param("activation_ckpt", 16, marks=pytest.mark.slow),
    pytest.param("grad_accum", 16, marks=pytest.mark.slow),
    ("async_dataload", 3),
    ("zero_offload", 12),
]
MOST_S = 20


@pytest.mark.parametrize(("name", "streams"), SLOWEST)
def test_thousand_samples_of_size_full_fit_into_the_time(name: str, streams: int) -> None:
    found, device = EVERYONE[name], SimulatedDevice("h200")
    # What a compiler makes of it cannot be simulated.
    given = {"mode": "eager"} if name == "torch_compile" else {}
    workload = found(parameters_for(found, "full", given))
    with ExitStack() as stack:
        stack.enter_context(group_for(workload, device))
        pool = stack.enter_context(device.open_streams(streams, gradients=found.gradients))
        workload.setup(Setup(device, streams, 3))
        workload.iterate(pool.streams)
        pool.synchronize()
        program: Program = eager(device, workload.iterate, tagged=False)
        if auto_dispatch(WORKLOADS[name], device.label, None) == "graph":
            program = graph(device, pool, workload.iterate)
        began_ns = device.clock_ns()
        program.enqueue(pool.streams)
        pool.synchronize()
        took_s = (device.clock_ns() - began_ns) / 1e9
        assert took_s * planned_iterations(workload, pool.streams, 1000) <= MOST_S


def test_graph_of_all_streams_times_requests_beyond_the_connections() -> None:
    device = SimulatedDevice("h200")
    assert device.connections < 10
    record = measured(EVERYONE["grad_accum"], 10, device, CASES["grad_accum"].small, "graph")
    assert (record.status, record.reason) == ("ok", "")
    assert record.samples is not None
    assert record.samples.tags_timed_by == "events"
    found = record.samples.tags_ns["microbatch"]
    assert len(found) == record.iterations * 9
    assert 0 < min(found) <= max(found) <= max(record.samples.device_ns)


def test_auto_dispatch_captures_what_is_known_to_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    asked = {
        (name, ranks): auto_dispatch(WORKLOADS[name], "cuda:0", ranks)
        for name in ("moe", "grad_accum", "comms_compute_overlap", "activation_ckpt", "fsdp_tp")
        for ranks in (1, 2)
    }
    # activation_ckpt has no collectives: one process runs it, whatever --hwq-ranks says.
    assert {key for key, mode in asked.items() if mode == "graph"} == {
        ("moe", 1), ("grad_accum", 1), ("comms_compute_overlap", 1),
        ("activation_ckpt", 1), ("activation_ckpt", 2),
    }  # fmt: skip
    assert auto_dispatch(WORKLOADS["moe"], "cpu", 1) == "eager"
    assert auto_dispatch(None, "cuda:0", 1) == "eager"
    for name in ("fsdp_tp", "zero_offload", "torch_compile"):
        assert WORKLOADS[name].graph_refusal(1), "a reason"


@pytest.mark.parametrize(
    ("streams", "samples", "iterations"), [(2, 1000, 1000), (16, 1000, 368), (16, 100, 100)]
)
def test_samples_that_end_together_are_planned_by_iterations(
    streams: int, samples: int, iterations: int
) -> None:
    workload, device = small("activation_ckpt"), HostDevice()
    with device.open_streams(streams, gradients=True) as pool:
        workload.setup(Setup(device, streams, 3))
        assert samples_per_iteration(workload, pool.streams) == streams // 2
        assert planned_iterations(workload, pool.streams, samples) == iterations
        assert pool.launched == 0, "nothing is run to tell"
