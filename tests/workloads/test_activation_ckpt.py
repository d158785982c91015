"""activation_ckpt: gradients as without checkpoints, recomputation alongside the backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import CheckFailed, NotApplicable
from pytest_hwqueue.metrics.timeline import Kernel
from pytest_hwqueue.workloads.workload import Setup

from .cells import Counts, Run, kernels_of
from .everyone import small


@pytest.mark.parametrize(
    ("blocks", "every", "segments"), [(2, 1, 2), (5, 2, 3), (3, 2, 2), (8, 2, 4)]
)
def test_blocks_are_cut_at_every_checkpoint(blocks: int, every: int, segments: int) -> None:
    counts = Counts()
    workload = small("activation_ckpt", blocks=blocks, every=every)
    with Run(workload, 2, counts.around) as run:
        run.once()
        assert counts.of_tag("forward") == counts.of_tag("backward") == segments
        assert counts.of_tag("recompute") == segments - 1
        workload.check(run.once)


def test_recomputation_runs_beside_the_backward_of_the_segment_behind() -> None:
    device = SimulatedDevice("h200")
    workload = small("activation_ckpt", hidden=256, heads=4, sequence=256, batch=4)
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


def test_no_more_than_two_graphs_are_kept_and_lanes_share_the_weights() -> None:
    kept: list[int] = []
    with Run(small("activation_ckpt"), 4) as run:
        workload: Any = run.workload
        lane = workload._lanes[0]

        def counting(name: str) -> None:
            original = getattr(lane, name)

            def counted(*arguments: Any) -> None:
                original(*arguments)
                kept.append(sum(segment.result is not None for segment in lane.segments))

            setattr(lane, name, counted)

        for name in ("recompute", "backward", "forward_last"):
            counting(name)
        run.once()
        assert max(kept) == 2
        assert all(segment.result is None for segment in lane.segments), "when the step is over"
        segments = [segment for each in workload._lanes for segment in each.segments]
        places = {leaf.data_ptr() for segment in segments for leaf in segment._leaves}
        blocks = workload._model
        assert places == {leaf.data_ptr() for block in blocks for leaf in block.parameters()}
        for each in workload._lanes:
            each.samples += 1
        with pytest.raises(CheckFailed, match="gradient of block 0: relative error"):
            workload.check(run.once)


def test_gradients_do_not_depend_on_the_number_of_streams_in_a_lane() -> None:
    sums = []
    for streams in (2, 3):
        with Run(small("activation_ckpt"), streams) as run:
            run.once()
            sums.append([each.clone() for each in run.workload._sums])  # type: ignore[attr-defined]
    assert all(map(torch.equal, *sums))


@pytest.mark.parametrize(("streams", "blocks", "needed"), [(2, 2, 2), (3, 4, 3), (5, 3, 3)])
def test_fewer_segments_than_streams_are_refused_with_what_to_change(
    streams: int, blocks: int, needed: int
) -> None:
    workload = small("activation_ckpt", blocks=blocks, every=2)
    with pytest.raises(NotApplicable, match=rf"activation_ckpt\.every=2 .* at least {needed}"):
        workload.setup(Setup(HostDevice(), streams, 3))
