"""grad_accum: gradients as of one big batch, reduced while later microbatches run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.workloads.distributed import grad_accum

from .cells import Run, kernels_of, simulated_timeline
from .everyone import small


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
        alone = [each.clone() for each in workload._sums]
        monkeypatch.setattr(grad_accum, "all_reduce", over_two_equal_ranks)
        run.once()
        assert len(seen) == 4 * 2
        assert len({bucket.data_ptr() for bucket in seen}) == 2 * 2, "two streams, two buckets"
        workload.check(run.once)
        for once, twice in zip(alone, workload._sums, strict=True):
            torch.testing.assert_close(2 * once, twice)
