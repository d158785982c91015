"""Simulating may take no longer in wall time than the cap says, and a cut is said."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from pytest_hwqueue.harness import closed_loop

from .conftest import Bench, present


@pytest.mark.parametrize("sync_mode", ["per_iteration", "end_only"])
def test_only_a_slow_simulation_is_cut_short_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, sync_mode: str
) -> None:
    device = bench.device()
    kernel = device.kernel_of(10_000)

    def stopped(iterations: int) -> tuple[str, int]:
        record = bench.measure(
            device, 1, lambda streams: streams[0].launch(kernel), iterations=iterations,
            sync_mode=sync_mode, wall_ns=30_000_000_000,
        )  # fmt: skip
        assert len(present(record.samples).device_ns) == record.iterations
        return record.stopped, record.iterations

    assert stopped(100) == ("100 iterations", 100)
    # Each look at the clock finds a second gone.
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic_ns=lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(closed_loop, "time", clock)
    reason, done = stopped(1000)
    assert 0 < done < 1000
    assert reason.startswith("wall-time cap of 30 s, after ")
    assert f"after {done} of 1000 iterations" in reason
