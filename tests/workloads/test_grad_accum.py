"""grad_accum: gradients as of one big batch, reduced while later microbatches run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed
from pytest_hwqueue.ranks.cell import group_of_one
from pytest_hwqueue.workloads.distributed import grad_accum
from pytest_hwqueue.workloads.distributed.grad_accum import GradientAccumulation
from pytest_hwqueue.workloads.workload import Setup, parameters_for

from .cells import Counts, LeftOut, Run, Waits, kernels_of, make, measured
from .orders import unordered

SMALL = {"hidden": 8, "heads": 2, "sequence": 4, "blocks": 2}


@pytest.mark.parametrize("streams", [2, 3, 6, 16])
def test_cell_is_measured_and_its_gradients_are_right(streams: int) -> None:
    record = measured(GradientAccumulation, streams, given=SMALL)
    assert (record.status, record.reason) == ("ok", "")
    microbatches = max(4, streams - 1)
    assert record.work_per_iteration == {"samples": float(microbatches)}
    assert record.samples is not None
    launches = {tag: len(times) for tag, times in record.samples.tags_ns.items()}
    each = record.iterations * microbatches
    assert launches == {
        "forward": each, "backward": 2 * each, "reduce": 2 * each, "microbatch": each,
    }  # fmt: skip
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams


@pytest.mark.parametrize(
    ("blocks", "bucket_blocks", "buckets"), [(1, 1, 1), (3, 2, 2), (4, 2, 2), (2, 5, 1)]
)
def test_blocks_are_put_into_buckets(blocks: int, bucket_blocks: int, buckets: int) -> None:
    counts = Counts()
    given = {**SMALL, "blocks": blocks, "bucket_blocks": bucket_blocks}
    with Run(make(GradientAccumulation, given), 3, counts.around) as run:
        run.once()
        assert counts.of_tag("reduce") == 4 * buckets
        run.workload.check(run.once)


def test_only_the_last_stream_reduces() -> None:
    counts = Counts()
    with Run(make(GradientAccumulation, SMALL), 4, counts.around) as run:
        run.once()
    assert {stream for stream, tag in counts.launches if tag == "reduce"} == {3}
    for tag in ("forward", "backward"):
        assert {stream for stream, found in counts.launches if found == tag} == {0, 1, 2}


def test_buckets_are_reduced_while_later_microbatches_run() -> None:
    device = SimulatedDevice("h200")
    workload = make(GradientAccumulation, {"hidden": 256, "heads": 4, "sequence": 256, "batch": 4})
    with group_of_one(device), device.open_streams(3, gradients=True) as pool:
        workload.setup(Setup(device, 3, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    computed_until = max(k.end_ns for k in kernels_of(timeline, "backward"))
    reduces = sorted(k.start_ns for k in kernels_of(timeline, "reduce"))
    early = sum(start < computed_until for start in reduces)
    # All but those of the buckets that the last microbatches finish last.
    assert early >= 0.8 * len(reduces)


@pytest.mark.parametrize("left_out", range(20))
def test_launch_left_out_is_noticed(left_out: int) -> None:
    # Four microbatches: a forward, and a backward and a reduction for each of two buckets.
    with Run(make(GradientAccumulation, SMALL), 3, LeftOut(20 + left_out).around) as run:
        run.once()
        # Without its graph a backward cannot run at all.
        with pytest.raises((CheckFailed, AssertionError)):
            run.workload.check(run.once)


@pytest.mark.parametrize("block", [0, 1])
def test_one_wrong_gradient_is_noticed(block: int) -> None:
    with Run(make(GradientAccumulation, SMALL), 3) as run:
        workload: Any = run.workload

        def spoiled() -> None:
            run.once()
            workload._sums[block][5] += 1.0

        with pytest.raises(CheckFailed, match=f"gradient of block {block}: relative error"):
            workload.check(spoiled)


def test_every_bucket_of_every_microbatch_goes_through_the_reduction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []

    def over_two_equal_ranks(bucket: torch.Tensor, group: object) -> None:
        seen.append(bucket)
        bucket.mul_(2)

    with Run(make(GradientAccumulation, SMALL), 3) as run:
        workload: Any = run.workload
        run.once()
        alone = [each.clone() for each in workload._sums]
        monkeypatch.setattr(grad_accum, "all_reduce", over_two_equal_ranks)
        run.once()
        assert len(seen) == 4 * 2
        assert len({bucket.data_ptr() for bucket in seen}) == 2 * 2, "two streams, two buckets"
        workload.check(run.once)
        for once, twice in zip(alone, workload._sums, strict=True):
            torch.testing.assert_close(2 * once, twice)


def test_gradients_do_not_depend_on_where_microbatches_run() -> None:
    sums = []
    for streams in (2, 3, 4):
        with Run(make(GradientAccumulation, SMALL), streams) as run:
            run.once()
            sums.append([each.clone() for each in run.workload._sums])  # type: ignore[attr-defined]
    assert all(map(torch.equal, sums[0], sums[1]))
    assert all(map(torch.equal, sums[0], sums[2]))


@pytest.mark.parametrize("streams", [2, 3])
def test_every_event_within_a_step_is_needed(streams: int) -> None:
    counted = Waits()
    assert unordered(make(GradientAccumulation, SMALL), streams, around=counted.around) == []
    period = counted.count // 2
    ends = 2 * (streams - 1)
    for left_out in range(period - ends):
        waits = Waits(left_out, period)
        races = unordered(make(GradientAccumulation, SMALL), streams, around=waits.around)
        assert races, f"wait {left_out}"


def test_same_seed_gives_the_same_gradients_and_another_one_others() -> None:
    sums = []
    for seed in (5, 5, 6):
        state = torch.get_rng_state()
        with Run(make(GradientAccumulation, SMALL), 4, seed=seed) as run:
            run.once()
            run.once()
            sums.append([each.clone() for each in run.workload._sums])  # type: ignore[attr-defined]
        assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, sums[0], sums[1]))
    assert not any(map(torch.equal, sums[0], sums[2]))


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
def test_gradients_are_right_in_every_numeric_format(dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        with Run(make(GradientAccumulation, {"dtype": dtype}), 4) as run:
            run.workload.check(run.once)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("parameter", "value"), [("heads", 3), ("microbatches", 3), ("bucket_blocks", 0)]
)
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter, match=rf"grad_accum\.{parameter}={value!r}"):
        parameters_for(GradientAccumulation, "tiny", {parameter: value})
