"""Regions on different streams, joined: compiled or not they give the same, and a failure fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed, NotApplicable
from pytest_hwqueue.harness.program import graph
from pytest_hwqueue.workloads.pipeline import torch_compile
from pytest_hwqueue.workloads.pipeline.torch_compile import CompileFailed, TorchCompile
from pytest_hwqueue.workloads.workload import Setup, Where, parameters_for

from .cells import Counts, LeftOut, Run, Waits, make, measured
from .orders import unordered
from .perturbed import check_perturbed

SMALL: dict[str, Any] = {"stages": 3, "hidden": 8, "inner": 12, "batch": 3}


def small(**given: Any) -> TorchCompile:
    workload = make(TorchCompile, {**SMALL, **given})
    assert isinstance(workload, TorchCompile)
    return workload


@pytest.mark.parametrize("streams", [2, 8, 16])
def test_cell_is_measured_and_checked(streams: int) -> None:
    record = measured(TorchCompile, streams, given=SMALL)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == {"samples": 3.0}
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams
    assert set(record.metrics.tags) == {"region"}


@pytest.mark.parametrize("streams", range(2, 17))
def test_every_stream_runs_a_region_in_each_stage_and_the_first_joins(streams: int) -> None:
    counts = Counts()
    with Run(small(), streams, counts.around) as run:
        run.once()
    assert counts.launches.pop((0, None)) == 3
    assert counts.launches == {(index, "region"): 3 for index in range(streams)}


@pytest.mark.parametrize("streams", [2, 5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_results_stay_right_when_streams_are_slowed_down(streams: int, seed: int) -> None:
    check_perturbed(HostDevice(), small(), streams, seed)


@pytest.mark.parametrize("streams", [2, 3, 8])
@pytest.mark.parametrize("stages", [2, 3])
def test_launches_that_share_memory_stand_in_an_order(streams: int, stages: int) -> None:
    assert unordered(small(stages=stages), streams) == []


@pytest.mark.parametrize("streams", [2, 3])
def test_each_event_is_needed(streams: int) -> None:
    counted = Waits()
    unordered(small(), streams, around=counted.around)
    period = counted.count // 2
    # In two stages of three each stream waits for the join before; the first waits for itself,
    # which orders nothing.
    assert period == 2 * streams + 3 * (streams - 1)
    races = [
        bool(unordered(small(), streams, around=Waits(each, period).around))
        for each in range(period)
    ]
    assert sum(races) == period - 2


@pytest.mark.parametrize("number", range(3 * (2 + 1)))
def test_launch_left_out_is_noticed(number: int) -> None:
    workload, left_out = small(), LeftOut(number)
    noticed = pytest.raises(CheckFailed, match=f"stage {number // 3}: relative error")
    with Run(workload, 2, left_out.around) as run, noticed:
        workload.check(run.once)


@pytest.mark.parametrize("stage", range(3))
def test_one_wrong_value_is_noticed(stage: int) -> None:
    workload = small()
    with Run(workload, 2) as run:

        def spoiled() -> None:
            run.once()
            workload._joined[stage + 1][1, 2] += 0.01

        with pytest.raises(CheckFailed, match=f"stage {stage}: relative error"):
            workload.check(spoiled)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
def test_result_is_right_in_every_numeric_format(dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        workload = small(dtype=dtype)
        with Run(workload, 3) as run:
            workload.check(run.once)
    finally:
        torch.set_float32_matmul_precision(before)


def test_same_seed_gives_the_same_results_and_another_one_others() -> None:
    results = []
    for seed in (5, 5, 6):
        workload = small()
        with Run(workload, 3, seed=seed) as run:
            run.once()
        results.append(workload._joined[-1].clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("streams", [2, 16])
def test_simulated_device_runs_it_uncompiled(streams: int) -> None:
    device, workload = SimulatedDevice("h200"), small()
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    assert {kernel.stream for kernel in timeline.kernels} == set(range(streams))
    assert workload.measured_apart() == {}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_simulated_device_refuses_to_compile(mode: str) -> None:
    device, workload = SimulatedDevice("h200"), small(mode=mode)
    with device.open_streams(2), pytest.raises(NotApplicable, match=f"mode={mode}.*mode=eager"):
        workload.setup(Setup(device, 2, 3))


def test_cpu_refuses_to_capture_graphs() -> None:
    workload = small(mode="reduce-overhead")
    with pytest.raises(NotApplicable, match="the CPU has none; use mode=default"):
        workload.setup(Setup(HostDevice(), 2, 3))


def test_graphs_cannot_hold_graphs() -> None:
    where = Where("cuda", 2, dispatch="graph")
    small(mode="default").require_applicable(where)
    with pytest.raises(NotApplicable, match="which a graph cannot hold; use mode=default"):
        small(mode="reduce-overhead").require_applicable(where)


def refusing(words: str) -> Callable[..., Any]:
    """Stands for torch.compile: what it returns fails when first called, as compiling does."""

    def compile_(function: object, **options: object) -> Callable[..., Any]:
        def compiled(*arguments: object) -> None:
            raise RuntimeError(words)

        return compiled

    return compile_


def test_compile_failure_is_a_failed_cell_with_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", refusing("no C++ compiler found\n" + "x" * 9000))
    record = measured(TorchCompile, 2, given={**SMALL, "mode": "default"})
    assert (record.status, record.stage) == ("failed", "set-up")
    assert record.reason.startswith(
        "CompileFailed: mode=default: torch.compile failed: RuntimeError: no C++ compiler found x"
    )
    assert len(record.reason) < 3000


def test_compiler_itself_fails_the_cell_and_does_not_fall_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaking(given: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        print("a graph break")
        return given

    monkeypatch.setattr(torch_compile, "_region", breaking)
    with pytest.raises(CompileFailed, match=r"mode=default: torch\.compile failed: Unsupported"):
        small(mode="default").setup(Setup(HostDevice(), 2, 3))


@pytest.mark.slow
def test_compiled_regions_give_what_the_plain_ones_give() -> None:
    from torch._dynamo.utils import counters

    for streams in (2, 5):
        workload = small(mode="default")
        with Run(workload, streams) as run:
            apart = workload.measured_apart()
            assert apart.keys() == {"compile_s", "graphs_from_cache"}
            assert apart["compile_s"] > 0
            graphs = counters["stats"]["unique_graphs"]
            run.once()
            workload.check(run.once)
            assert counters["stats"]["unique_graphs"] == graphs, "all was compiled in set-up"
    check_perturbed(HostDevice(), small(mode="default"), 4, seed=1)


def test_iteration_can_be_captured_into_a_graph() -> None:
    device, workload = SimulatedDevice("h200"), small()
    with device.open_streams(8) as pool:
        workload.setup(Setup(device, 8, 3))
        workload.iterate(pool.streams)
        pool.synchronize()
        program = graph(device, pool, workload.iterate, False)
        assert program.whole
        timeline = pool.timeline(lambda: program.enqueue(pool.streams))
    assert timeline.kernels


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("mode", "max-autotune"), ("stages", 1), ("hidden", 0), ("batch", "many"), ("dtype", "fp8")],
)
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter) as refused:
        parameters_for(TorchCompile, "tiny", {parameter: value})
    assert str(refused.value).startswith(f"torch_compile.{parameter}={value!r}: ")
