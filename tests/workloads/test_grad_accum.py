"""grad_accum: gradients as of one big batch, reduced while later microbatches run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.ranks.cell import group_of_one
from pytest_hwqueue.workloads.distributed import grad_accum
from pytest_hwqueue.workloads.workload import Setup

from .cells import Counts, Run, kernels_of
from .everyone import small


@pytest.mark.parametrize(
    ("blocks", "bucket_blocks", "buckets"), [(1, 1, 1), (3, 2, 2), (4, 2, 2), (2, 5, 1)]
)
def test_blocks_are_put_into_buckets_that_the_last_stream_reduces(
    blocks: int, bucket_blocks: int, buckets: int
) -> None:
    counts = Counts()
    workload = small("grad_accum", blocks=blocks, bucket_blocks=bucket_blocks)
    with Run(workload, 4, counts.around) as run:
        run.once()
        assert counts.of_tag("reduce") == 4 * buckets
        workload.check(run.once)
    assert counts.streams_of("reduce") == {3}
    assert counts.streams_of("forward") == counts.streams_of("backward") == {0, 1, 2}


def test_buckets_are_reduced_while_later_microbatches_run() -> None:
    device = SimulatedDevice("h200")
    workload = small("grad_accum", hidden=256, heads=4, sequence=256, batch=4)
    with group_of_one(device), device.open_streams(3, gradients=True) as pool:
        workload.setup(Setup(device, 3, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
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
        with Run(small("grad_accum"), streams) as run:
            run.once()
            sums.append([each.clone() for each in run.workload._sums])  # type: ignore[attr-defined]
    assert all(map(torch.equal, sums[0], sums[1]))
    assert all(map(torch.equal, sums[0], sums[2]))
