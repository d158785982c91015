"""What stress takes of each resource, on a device and on a model of one, and that it is checked."""

from __future__ import annotations

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.data.resources import RESOURCES, Resource
from pytest_hwqueue.parts.devices.simulated.costs import CopyWork, Costs, KernelWork, Work
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.profile import load_profile
from pytest_hwqueue.parts.workloads.latency_sensitive.stress import Stress
from pytest_hwqueue.parts.workloads.workload import Setup, parameters_for

from .cells import Run, make

each_resource = pytest.mark.parametrize("resource", RESOURCES)


def enqueued(resource: Resource, streams: int = 1, **given: object) -> list[tuple[Work, ...]]:
    """What a burst of each stream enqueues on a simulated H200 at full size."""
    device = SimulatedDevice("h200")
    workload = Stress(parameters_for(Stress, "full", {"resource": resource, **given}))
    bursts: list[tuple[Work, ...]] = []
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 3))

        class Costing:
            def launch(self, function: object, *arguments: object, tag: str | None = None) -> None:
                assert callable(function)
                assert tag == "burst"
                bursts.append(Costs(load_profile("h200")).of(function, arguments))

        workload.iterate([Costing()] * streams)  # type: ignore[list-item]
        pool.synchronize()
    return bursts


@each_resource
def test_a_wrong_number_of_any_stream_is_noticed(resource: Resource) -> None:
    with Run(make(Stress, {"resource": resource, "mm_dim": 16}), 2) as run:
        run.workload.check(run.once)
        assert isinstance(run.workload, Stress)
        for output in run.workload.outputs:

            def spoiled(output: torch.Tensor = output) -> None:
                run.once()
                output.view(-1)[7] += 1

            with pytest.raises(CheckFailed):
                run.workload.check(spoiled)


@each_resource
def test_a_burst_repeats_its_operation_and_each_takes_as_long_as_others(
    resource: Resource,
) -> None:
    ((*one,),), ((*three,),) = enqueued(resource, depth=1), enqueued(resource, depth=3)
    assert three == 3 * one
    bytes_per_s = load_profile("h200").copy_engines[0].bandwidth_bytes_per_s.value
    took_ns = sum(
        work.duration_ns if isinstance(work, KernelWork) else work.size_bytes / bytes_per_s * 1e9
        for work in one
        if isinstance(work, (KernelWork, CopyWork))
    )
    # The host takes 7 µs for each of the tiny kernels.
    took_ns += 7000 * len(one) if resource == "launches" else 0
    # Blocks by their bytes alone, as the model has them.
    assert (50e3 if resource == "blocks" else 200e3) < took_ns < 400e3


def test_what_is_enqueued_takes_the_resource() -> None:
    cut = load_profile("h200").multiprocessing
    (((product,),), ((l2,),), ((memory,),)) = (
        enqueued(each, depth=1) for each in ("multiprocessors", "l2", "memory")
    )
    assert isinstance(product, KernelWork)
    assert not product.memory_bound
    assert product.blocks > cut.multiprocessors.value
    ((*blocks,),) = enqueued("blocks", depth=1)
    assert all(isinstance(each, KernelWork) and each.blocks > 10_000 for each in blocks)
    assert len(blocks) == 8
    for read in (l2, memory):
        assert isinstance(read, KernelWork)
        assert read.memory_bound
    assert len(enqueued("launches", depth=1)[0]) == 48
    (there,), (back,) = enqueued("copies", streams=2, depth=1)
    for copy in (there, back):
        assert isinstance(copy, CopyWork)
        assert copy.size_bytes == 16 << 20


def test_buffers_are_as_large_as_asked_and_by_default_as_the_cache_asks() -> None:
    with SimulatedDevice("h200").open_streams(1):
        sizes = {}
        for resource in ("l2", "memory"):
            for mebibytes in (None, 8):
                workload = Stress(
                    parameters_for(Stress, "full", {"resource": resource, "mebibytes": mebibytes})
                )
                workload.setup(Setup(SimulatedDevice("h200"), 1, 3))
                (sums,) = workload.outputs
                # A row of the buffer has 1,024 numbers of 4 bytes.
                sizes[resource, mebibytes] = (len(sums), sums.shape[1] * 4096 >> 20)
    assert sizes == {
        ("l2", None): (64, 20), ("l2", 8): (64, 8),
        ("memory", None): (4, 240), ("memory", 8): (4, 8),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "depth"), [("multiprocessors", 16), ("launches", 1), ("blocks", 6)]
)
def test_a_timeline_holds_back_no_more_kernels_than_fit(resource: Resource, depth: int) -> None:
    found = make(Stress, {"resource": resource, "depth": 16}).timeline_parameters(16)
    assert found == {"depth": depth}
