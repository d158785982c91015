"""Batches on their way to a network: every stream has work, buffers are reused in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed
from pytest_hwqueue.harness.program import graph
from pytest_hwqueue.workloads.pipeline.async_dataload import AsyncDataload
from pytest_hwqueue.workloads.pipeline.stages import grouped, thirds
from pytest_hwqueue.workloads.workload import Setup, parameters_for

from .cells import Counts, LeftOut, Run, Waits, kernels_of, make, measured
from .orders import unordered
from .perturbed import check_perturbed

# Quick enough for many runs: five batches, so that buffers are used again within an iteration.
FEW: dict[str, Any] = {"batches": 5, "batch": 1}


@pytest.mark.parametrize("streams", range(3, 13))
def test_streams_are_split_into_three_groups_that_use_them_all(streams: int) -> None:
    sizes = thirds(streams)
    assert sum(sizes) == streams
    assert max(sizes) - min(sizes) <= 1
    with HostDevice().open_streams(streams) as pool:
        groups = grouped(pool.streams, sizes)
    assert [stream.index for group in groups for stream in group] == list(range(streams))
    assert tuple(map(len, groups)) == sizes


@pytest.mark.parametrize("streams", [3, 6, 12])
def test_cell_is_measured_and_checked(streams: int) -> None:
    record = measured(AsyncDataload, streams, given=FEW)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == {"images": 5.0}
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams
    assert set(record.metrics.tags) == {"copy", "preprocess", "compute"}


@pytest.mark.parametrize("streams", range(3, 13))
def test_every_stream_has_one_kind_of_work(streams: int) -> None:
    counts = Counts()
    with Run(make(AsyncDataload, {**FEW, "batches": 4}), streams, counts.around) as run:
        run.once()
    assert counts.streams == set(range(streams))
    assert len(counts.launches) == streams, "one tag per stream"
    assert {tag: counts.of_tag(tag) for tag in AsyncDataload.tags} == dict.fromkeys(
        AsyncDataload.tags, 4
    )


@pytest.mark.parametrize("streams", [3, 7])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_results_stay_right_when_streams_are_slowed_down(streams: int, seed: int) -> None:
    check_perturbed(HostDevice(), make(AsyncDataload, FEW), streams, seed, most_ms=2)


@pytest.mark.parametrize("streams", [3, 4, 5, 6, 8, 12])
def test_buffers_are_filled_and_read_in_an_order(streams: int) -> None:
    assert unordered(make(AsyncDataload, FEW), streams) == []


def test_an_event_left_out_is_a_race() -> None:
    counted = Waits()
    unordered(make(AsyncDataload, FEW), 3, around=counted.around)
    period = counted.count // 2
    races = [
        bool(unordered(make(AsyncDataload, FEW), 3, around=Waits(each, period).around))
        for each in range(period)
    ]
    # Of the waits for the next iteration's sake, those for buffers 1 are covered by those for
    # buffers 0, which were read last.
    assert races == [each not in (period - 3, period - 1) for each in range(period)]


@pytest.mark.parametrize("number", range(15))
def test_launch_left_out_is_noticed(number: int) -> None:
    workload, left_out = make(AsyncDataload, FEW), LeftOut(number)
    noticed = pytest.raises(CheckFailed, match=f"batch {number // 3}: relative error")
    with Run(workload, 3, left_out.around) as run, noticed:
        workload.check(run.once)


@pytest.mark.parametrize("batch", range(5))
def test_another_batchs_result_is_noticed(batch: int) -> None:
    with Run(make(AsyncDataload, FEW), 3) as run:
        outputs = run.workload._outputs  # type: ignore[attr-defined]

        def swapped() -> None:
            run.once()
            outputs[batch] = outputs[batch - 1].clone()

        with pytest.raises(CheckFailed, match=f"batch {batch}: relative error"):
            run.workload.check(swapped)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
def test_result_is_right_in_every_numeric_format(dtype: str) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        with Run(make(AsyncDataload, {**FEW, "dtype": dtype}), 4) as run:
            run.workload.check(run.once)
            assert torch.backends.cudnn.allow_tf32 == (dtype == "tf32")
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_same_seed_gives_the_same_results_and_another_one_others() -> None:
    images, outputs = [], []
    for seed in (5, 5, 6):
        with Run(make(AsyncDataload, FEW), 4, seed=seed) as run:
            run.once()
            images.append(run.workload._host.clone())  # type: ignore[attr-defined]
            outputs.append(run.workload._outputs.clone())  # type: ignore[attr-defined]
    # The network depends on the seed too, so outputs alone say nothing of the images.
    for of_seeds in (images, outputs):
        assert torch.equal(of_seeds[0], of_seeds[1])
        assert not torch.equal(of_seeds[0], of_seeds[2])


def test_every_image_of_every_batch_counts_as_work() -> None:
    work = make(AsyncDataload, {**FEW, "batch": 3}).work_per_iteration()
    assert work == {"images": 15.0}


@pytest.mark.parametrize("streams", [3, 12])
def test_simulated_device_runs_it(streams: int) -> None:
    device, workload = SimulatedDevice("h200"), make(AsyncDataload)
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    assert {kernel.stream for kernel in timeline.kernels} == set(range(streams))
    copies = [kernel for kernel in timeline.kernels if kernel.name == "copy"]
    assert copies == kernels_of(timeline, "copy")
    assert len(copies) == 4


@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
@pytest.mark.parametrize("batches", [4, 8, 64])
def test_timeline_takes_no_more_batches_than_can_be_held(model: str, batches: int) -> None:
    workload = make(AsyncDataload, {"batches": batches, "model": model})
    changed = workload.timeline_parameters(6)
    assert 4 <= changed["batches"] <= batches
    make(AsyncDataload, {"model": model, **changed})


def test_iteration_can_be_captured_into_a_graph() -> None:
    device, workload = SimulatedDevice("h200"), make(AsyncDataload)
    with device.open_streams(6) as pool:
        workload.setup(Setup(device, 6, 3))
        workload.iterate(pool.streams)
        pool.synchronize()
        program = graph(device, pool, workload.iterate, False)
        assert program.whole
        timeline = pool.timeline(lambda: program.enqueue(pool.streams))
    assert timeline.kernels


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("batches", 3), ("batch", 0), ("side", 16), ("model", "vgg"), ("model_size", "huge")],
)
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter) as refused:
        parameters_for(AsyncDataload, "tiny", {parameter: value})
    assert str(refused.value).startswith(f"async_dataload.{parameter}={value!r}: ")
