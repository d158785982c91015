"""activation_ckpt: gradients as without checkpoints, recomputation alongside the backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed, NotApplicable
from pytest_hwqueue.metrics.timeline import Kernel
from pytest_hwqueue.workloads.distributed.activation_ckpt import ActivationCheckpoint
from pytest_hwqueue.workloads.workload import Setup, parameters_for

from .cells import Counts, LeftOut, Run, Waits, kernels_of, make, measured
from .orders import unordered

SMALL = {"hidden": 8, "heads": 2, "sequence": 4, "blocks": 4}


@pytest.mark.parametrize("streams", [2, 3, 6, 16])
def test_cell_is_measured_and_its_gradients_are_right(streams: int) -> None:
    record = measured(ActivationCheckpoint, streams, given=SMALL)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == {"samples": float(streams // 2)}
    assert record.samples is not None
    launches = {tag: len(times) for tag, times in record.samples.tags_ns.items()}
    lanes = record.iterations * (streams // 2)
    assert launches == {
        "forward": 4 * lanes, "recompute": 3 * lanes, "backward": 4 * lanes, "step": lanes,
    }  # fmt: skip
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams


@pytest.mark.parametrize(
    ("blocks", "every", "segments"), [(2, 1, 2), (5, 2, 3), (3, 2, 2), (8, 2, 4)]
)
def test_blocks_are_cut_at_every_checkpoint(blocks: int, every: int, segments: int) -> None:
    counts = Counts()
    given = {**SMALL, "blocks": blocks, "every": every}
    with Run(make(ActivationCheckpoint, given), 2, counts.around) as run:
        run.once()
        assert counts.of_tag("forward") == counts.of_tag("backward") == segments
        assert counts.of_tag("recompute") == segments - 1
        run.workload.check(run.once)


def test_recomputation_runs_beside_the_backward_of_the_segment_behind() -> None:
    device = SimulatedDevice("h200")
    given = {"hidden": 256, "heads": 4, "sequence": 256, "batch": 4, "blocks": 4}
    workload = make(ActivationCheckpoint, given)
    with device.open_streams(2, gradients=True) as pool:
        workload.setup(Setup(device, 2, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))

    def spans(tag: str) -> list[tuple[int, int, int]]:
        by_launch: dict[int, list[Kernel]] = {}
        for kernel in kernels_of(timeline, tag):
            by_launch.setdefault(kernel.launch, []).append(kernel)
        return [
            (of[0].stream, min(k.start_ns for k in of), max(k.end_ns for k in of))
            for _, of in sorted(by_launch.items())
        ]

    recomputed, backwards = spans("recompute"), spans("backward")
    assert len(recomputed) == 3
    for again, behind in zip(recomputed, backwards, strict=False):
        assert again[0] != behind[0], "on another stream"
        assert again[1] < behind[2], "it starts before that backward ends"
        assert behind[1] < again[2]


def test_no_more_than_two_graphs_are_kept() -> None:
    kept: list[int] = []
    with Run(make(ActivationCheckpoint, SMALL), 3) as run:
        (lane,) = run.workload._lanes  # type: ignore[attr-defined]

        def count() -> None:
            kept.append(sum(segment.result is not None for segment in lane.segments))

        def counting(name: str) -> None:
            original = getattr(lane, name)

            def counted(*arguments: Any) -> None:
                original(*arguments)
                count()

            setattr(lane, name, counted)

        for name in ("recompute", "backward", "forward_last"):
            counting(name)
        run.once()
        count()
    assert max(kept) <= 2
    assert kept[-1] == 0, "and none when the step is over"


@pytest.mark.parametrize("left_out", range(30))
def test_launch_left_out_is_noticed(left_out: int) -> None:
    # Two lanes of 4 forwards, 3 recomputations, 4 backwards and 4 additions.
    with Run(make(ActivationCheckpoint, SMALL), 4, LeftOut(30 + left_out).around) as run:
        run.once()
        # Without its graph a backward cannot run at all.
        with pytest.raises((CheckFailed, AssertionError)):
            run.workload.check(run.once)


@pytest.mark.parametrize("block", [0, 3])
def test_one_wrong_gradient_is_noticed(block: int) -> None:
    with Run(make(ActivationCheckpoint, SMALL), 2) as run:
        workload: Any = run.workload

        def spoiled() -> None:
            run.once()
            workload._sums[block][5] += 1.0

        with pytest.raises(CheckFailed, match=f"gradient of block {block}: relative error"):
            workload.check(spoiled)


def test_a_wrong_divisor_of_the_loss_is_noticed() -> None:
    with Run(make(ActivationCheckpoint, SMALL), 4) as run:
        workload: Any = run.workload
        for lane in workload._lanes:
            lane.samples += 1
        with pytest.raises(CheckFailed, match="gradient of block 0: relative error"):
            workload.check(run.once)


def test_events_that_order_memory_are_needed() -> None:
    counted = Waits()
    assert unordered(make(ActivationCheckpoint, SMALL), 2, around=counted.around) == []
    period = counted.count // 2
    found = []
    for left_out in range(period):
        waits = Waits(left_out, period)
        found.append(bool(unordered(make(ActivationCheckpoint, SMALL), 2, around=waits.around)))
    forward, back, end = found[:3], found[3:10], found[10:]
    assert all(forward), "what a segment gives to the next"
    # In turn the recomputation's wait, which bounds what is kept and orders nothing, and the
    # backward's for the slope; the last segment's has none to wait for, the first no recomputation.
    assert back == [False, False, False, True, False, True, True]
    # Both ends are ordered by the slopes already, as long as there is only one lane.
    assert end == [False, False]


def test_gradients_do_not_depend_on_the_number_of_streams_in_a_lane() -> None:
    sums = []
    for streams in (2, 3):
        with Run(make(ActivationCheckpoint, SMALL), streams) as run:
            run.once()
            sums.append([each.clone() for each in run.workload._sums])  # type: ignore[attr-defined]
    assert all(map(torch.equal, *sums))


def test_same_seed_gives_the_same_gradients_and_another_one_others() -> None:
    sums = []
    for seed in (5, 5, 6):
        state = torch.get_rng_state()
        with Run(make(ActivationCheckpoint, SMALL), 4, seed=seed) as run:
            run.once()
            run.once()
            sums.append([each.clone() for each in run.workload._sums])  # type: ignore[attr-defined]
        assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, sums[0], sums[1]))
    assert not any(map(torch.equal, sums[0], sums[2]))


def test_lanes_share_the_weights() -> None:
    with Run(make(ActivationCheckpoint, SMALL), 4) as run:
        workload: Any = run.workload
        places = {
            leaf.data_ptr()
            for lane in workload._lanes
            for segment in lane.segments
            for leaf in segment._leaves
        }
        assert places == {
            leaf.data_ptr() for block in workload._model for leaf in block.parameters()
        }


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
def test_gradients_are_right_in_every_numeric_format(dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        with Run(make(ActivationCheckpoint, {"dtype": dtype}), 4) as run:
            run.workload.check(run.once)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("streams", "blocks", "needed"), [(2, 2, 2), (3, 4, 3), (5, 3, 3)])
def test_fewer_segments_than_streams_are_refused_with_what_to_change(
    streams: int, blocks: int, needed: int
) -> None:
    workload = make(ActivationCheckpoint, {**SMALL, "blocks": blocks, "every": 2})
    with pytest.raises(NotApplicable, match=rf"activation_ckpt\.every=2 .* at least {needed}"):
        workload.setup(Setup(HostDevice(), streams, 3))


@pytest.mark.parametrize(("parameter", "value"), [("heads", 3), ("every", 0), ("dtype", "fp16")])
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter, match=rf"activation_ckpt\.{parameter}={value!r}"):
        parameters_for(ActivationCheckpoint, "tiny", {parameter: value})
