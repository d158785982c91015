"""activation_ckpt and grad_accum: recomputation and reduction run alongside the backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.data.metrics.timeline import Kernel
from pytest_hwqueue.parts.workloads.distributed import grad_accum

from .cells import Run, kernels_of, simulated_timeline
from .everyone import small


def test_recomputation_runs_beside_the_backward_of_the_segment_behind() -> None:
    workload = small("activation_ckpt", hidden=256, heads=4, sequence=256, batch=4)
    timeline = simulated_timeline(workload, 2)

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
        lane = workload.lanes[0]

        def counting(name: str) -> None:
            original = getattr(lane, name)

            def counted(*arguments: Any) -> None:
                original(*arguments)
                kept.append(sum(segment.result is not None for segment in lane.segments))

            setattr(lane, name, counted)

        for name in ("recompute", "backward", "forward_last"):
            counting(name)
        run.once()
        # One where the machine is busy: then a stream is done before the other begins.
        assert max(kept) in (1, 2)
        assert all(segment.result is None for segment in lane.segments), "when the step is over"
        segments = [segment for each in workload.lanes for segment in each.segments]
        places = {leaf.data_ptr() for segment in segments for leaf in segment._leaves}
        blocks = workload._model
        assert places == {leaf.data_ptr() for block in blocks for leaf in block.parameters()}


def test_buckets_are_reduced_while_later_microbatches_run() -> None:
    workload = small("grad_accum", hidden=256, heads=4, sequence=256, batch=4)
    timeline = simulated_timeline(workload, 3)
    computed_until = max(k.end_ns for k in kernels_of(timeline, "backward"))
    reduces = sorted(k.start_ns for k in kernels_of(timeline, "reduce"))
    early = sum(start < computed_until for start in reduces)
    # All but those of the buckets that the last microbatches finish last.
    assert early >= 0.8 * len(reduces)


def test_every_bucket_of_every_microbatch_goes_through_the_reduction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []

    def over_two_equal_ranks(bucket: torch.Tensor, group: object) -> None:
        seen.append(bucket)
        bucket.mul_(2)

    with Run(small("grad_accum"), 3) as run:
        workload: Any = run.workload
        run.once()
        alone = [each.clone() for each in workload.sums]
        monkeypatch.setattr(grad_accum, "all_reduce", over_two_equal_ranks)
        run.once()
        assert len(seen) == 4 * 2
        assert len({bucket.data_ptr() for bucket in seen}) == 2 * 2, "two streams, two buckets"
        workload.check(run.once)
        for once, twice in zip(alone, workload.sums, strict=True):
            torch.testing.assert_close(2 * once, twice)
