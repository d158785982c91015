"""Training with parameters on the host: equal to plain training, whatever the streams' speed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed, NotApplicable
from pytest_hwqueue.harness.program import graph
from pytest_hwqueue.workloads.pipeline import zero_offload
from pytest_hwqueue.workloads.pipeline.zero_offload import ZeroOffload
from pytest_hwqueue.workloads.workload import Setup, Where, parameters_for

from .cells import Counts, LeftOut, Run, Waits, make, measured
from .orders import unordered
from .perturbed import check_perturbed

# One layer and one sample more than a group can have streams, so that both are shared unevenly.
SMALL: dict[str, Any] = {"layers": 5, "hidden": 8, "inner": 12, "batch": 5, "sequence": 3}


def small(**given: Any) -> ZeroOffload:
    workload = make(ZeroOffload, {**SMALL, **given})
    assert isinstance(workload, ZeroOffload)
    return workload


@pytest.mark.parametrize("streams", [3, 6, 12])
def test_cell_is_measured_and_checked(streams: int) -> None:
    record = measured(ZeroOffload, streams, given=SMALL)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == {"samples": 5.0, "optimiser steps": 1.0}
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams
    assert set(record.metrics.tags) == {"prefetch", "compute", "offload"}


@pytest.mark.parametrize("streams", range(3, 13))
@pytest.mark.parametrize("layers", [2, 3, 5])
def test_every_stream_has_one_kind_of_work_and_the_first_the_hosts(
    streams: int, layers: int
) -> None:
    counts = Counts()
    with Run(small(layers=layers, batch=7), streams, counts.around) as run:
        run.once()
    assert counts.streams == set(range(streams))
    assert counts.launches.pop((0, None)) == 1, "one optimiser step"
    assert len(counts.launches) == streams, "one tag per stream"
    computing = sum(tag == "compute" for _, tag in counts.launches)
    assert counts.of_tag("prefetch") == 2 * layers - 1, "the last layer is fetched once"
    assert counts.of_tag("compute") == 2 * layers * computing
    assert counts.of_tag("offload") == layers


@pytest.mark.parametrize("streams", [3, 4, 5, 6, 7, 12])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_training_equals_plain_training(streams: int, dtype: str) -> None:
    workload = small(dtype=dtype)
    with Run(workload, streams) as run:
        workload.check(run.once)
        run.once()
        workload.check(run.once)

        def twice() -> None:
            workload.iterate(run.streams)
            run.once()

        workload.check(twice)
    assert workload.steps == 5


@pytest.mark.parametrize("streams", [3, 7])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_results_stay_right_when_streams_are_slowed_down(streams: int, seed: int) -> None:
    check_perturbed(HostDevice(), small(), streams, seed, most_ms=1)


@pytest.mark.parametrize("streams", [3, 4, 5, 6, 9, 12])
@pytest.mark.parametrize("layers", [2, 4])
def test_launches_that_share_memory_stand_in_an_order(streams: int, layers: int) -> None:
    assert unordered(small(layers=layers, batch=7), streams) == []


def test_more_compute_streams_than_samples_are_refused() -> None:
    workload = small(layers=2, batch=6)
    workload.require_applicable(Where("cpu", 11))
    with pytest.raises(NotApplicable, match="batch=6 leaves some of 7 compute streams"):
        workload.setup(Setup(HostDevice(), 12, 3))


def test_each_event_is_needed() -> None:
    counted = Waits()
    unordered(small(layers=4), 3, around=counted.around)
    period = counted.count // 2
    for each in range(period):
        assert unordered(small(layers=4), 3, around=Waits(each, period).around), each


# Not the seventh: with two slots the first layer fetched again finds itself still there.
@pytest.mark.parametrize("number", [each for each in range(7 + 8 + 4 + 1) if each != 7])
def test_launch_left_out_is_noticed(number: int) -> None:
    workload = small(layers=4)
    with Run(workload, 3, LeftOut(number).around) as run, pytest.raises(CheckFailed):
        workload.check(run.once)


@pytest.mark.parametrize("layer", range(5))
@pytest.mark.parametrize("where", ["_host_gradients", "_masters"])
def test_one_wrong_value_is_noticed(layer: int, where: str) -> None:
    workload = small()
    with Run(workload, 3) as run:

        def spoiled() -> None:
            run.once()
            getattr(workload, where)[layer][7] += 0.5

        with pytest.raises(CheckFailed, match=f"layer {layer}: relative error"):
            workload.check(spoiled)


def test_parameters_that_were_not_sent_are_noticed() -> None:
    workload = small(dtype="bf16")
    with Run(workload, 3) as run:

        def stale() -> None:
            run.once()
            workload._host_parameters[2].mul_(1.1)

        with pytest.raises(CheckFailed, match="layer 2: what will be fetched"):
            workload.check(stale)


def test_training_lowers_the_loss() -> None:
    def loss() -> float:
        shares = workload._shares
        outputs = torch.cat([share._between[-1] for share in shares])
        targets = torch.cat([share.targets for share in shares])
        return float((outputs - targets).square().mean())

    workload = small(learning_rate=1e-2)
    with Run(workload, 6) as run:
        run.once()
        first = loss()
        for _ in range(40):
            run.once()
        assert loss() < 0.9 * first


def test_optimisers_time_is_told_apart() -> None:
    workload = small()
    with Run(workload, 3) as run:
        assert workload.measured_apart() == {}
        run.once()
    assert workload.measured_apart().keys() == {"optimiser_step_ms"}
    assert workload.measured_apart()["optimiser_step_ms"] > 0
    assert workload.decisions_drawn == ()


def test_error_of_the_optimiser_is_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object, **options: object) -> None:
        raise ArithmeticError("the step failed")

    monkeypatch.setattr(zero_offload, "adam", failing)
    record = measured(ZeroOffload, 3, given=SMALL)
    assert (record.status, record.stage) == ("failed", "warm-up")
    assert record.reason == "ArithmeticError: the step failed"


def test_same_seed_gives_the_same_results_and_another_one_others() -> None:
    parameters = []
    for seed in (5, 5, 6):
        workload = small()
        with Run(workload, 6, seed=seed) as run:
            for _ in range(3):
                run.once()
        parameters.append(torch.stack(workload._host_parameters))
    assert torch.equal(parameters[0], parameters[1])
    assert not torch.equal(parameters[0], parameters[2])


@pytest.mark.parametrize("streams", [3, 12])
def test_simulated_device_runs_it_and_the_host_takes_the_time_assumed(streams: int) -> None:
    device, workload = SimulatedDevice("h200"), small(hidden=64, inner=256)
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    assert {kernel.stream for kernel in timeline.kernels} == set(range(streams))
    (step,) = [kernel for kernel in timeline.kernels if kernel.tag is None]
    assert step.end_ns - step.start_ns == round(5 * 2 * 64 * 256 * 28 / 100e9 * 1e9)
    assert step.start_ns >= max(k.end_ns for k in timeline.kernels if k.tag is not None)
    assert workload.decisions_drawn == (
        "time of the optimiser step on a host assumed to move 100 GB/s",
    )
    assert workload.steps == 0


def test_iteration_can_be_captured_into_a_graph() -> None:
    device, workload = SimulatedDevice("h200"), small()
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
    [("layers", 1), ("batch", 0), ("hidden", 0), ("dtype", "fp16"), ("learning_rate", 0)],
)
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter) as refused:
        parameters_for(ZeroOffload, "tiny", {parameter: value})
    assert str(refused.value).startswith(f"zero_offload.{parameter}={value!r}: ")
