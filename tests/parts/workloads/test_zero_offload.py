"""Training with parameters on the host: equal to plain training, whatever the streams' speed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.parts.workloads.pipeline import zero_offload
from pytest_hwqueue.parts.workloads.pipeline.zero_offload import ZeroOffload

from .cells import Counts, Run, measured, simulated_timeline
from .everyone import CASES, small
from .orders import unordered

NAME = "zero_offload"


@pytest.mark.parametrize("streams", [3, 4, 5, 6, 7, 12])
@pytest.mark.parametrize("layers", [2, 3, 5])
def test_every_stream_has_one_kind_of_work_and_the_first_the_hosts(
    streams: int, layers: int
) -> None:
    counts = Counts()
    with Run(small(NAME, layers=layers, batch=7), streams, counts.around) as run:
        run.once()
    assert counts.streams == set(range(streams))
    assert counts.launches.pop((0, None)) == 1, "one optimiser step"
    assert len(counts.launches) == streams, "one tag per stream"
    computing = len(counts.streams_of("compute"))
    assert counts.of_tag("prefetch") == 2 * layers - 1, "the last layer is fetched once"
    assert counts.of_tag("compute") == 2 * layers * computing
    assert counts.of_tag("offload") == layers
    if layers == 2:
        assert unordered(small(NAME, layers=layers, batch=7), streams) == []


@pytest.mark.parametrize("streams", [3, 4, 7, 12])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_training_equals_plain_training(streams: int, dtype: str) -> None:
    with Run(small(NAME, dtype=dtype), streams) as run:
        workload: Any = run.workload
        workload.check(run.once)
        run.once()
        workload.check(run.once)

        def twice() -> None:
            workload.iterate(run.streams)
            run.once()

        workload.check(twice)
    assert workload.steps == 5


def test_training_lowers_the_loss_and_tells_the_optimisers_time_apart() -> None:
    def loss() -> float:
        outputs = torch.cat([share._between[-1] for share in workload._shares])
        targets = torch.cat([share.targets for share in workload._shares])
        return float((outputs - targets).square().mean())

    with Run(small(NAME, learning_rate=1e-2), 6) as run:
        workload: Any = run.workload
        assert workload.measured_apart() == {}
        run.once()
        assert workload.measured_apart().keys() == {"optimiser_step_ms"}
        assert workload.measured_apart()["optimiser_step_ms"] > 0
        first = loss()
        for _ in range(40):
            run.once()
        assert loss() < 0.9 * first
        assert workload.decisions_drawn == ()


def test_error_of_the_optimiser_is_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object, **options: object) -> None:
        raise ArithmeticError("the step failed")

    monkeypatch.setattr(zero_offload, "adam", failing)
    record = measured(ZeroOffload, 3, given=CASES[NAME].small)
    assert (record.status, record.stage) == ("failed", "warm-up")
    assert record.reason == "ArithmeticError: the step failed"


@pytest.mark.parametrize("streams", [3, 12])
def test_simulated_host_takes_the_time_assumed(streams: int) -> None:
    workload: Any = small(NAME, hidden=64, inner=256)
    timeline = simulated_timeline(workload, streams)
    (step,) = [kernel for kernel in timeline.kernels if kernel.tag is None]
    assert step.end_ns - step.start_ns == round(5 * 2 * 64 * 256 * 28 / 100e9 * 1e9)
    assert step.start_ns >= max(k.end_ns for k in timeline.kernels if k.tag is not None)
    assert workload.decisions_drawn == (
        "time of the optimiser step on a host assumed to move 100 GB/s",
    )
    assert workload.steps == 0
