"""Simulating may take no longer in wall time than the cap says, and a cut is said."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from pytest_hwqueue.harness import closed_loop

from .conftest import Bench

_KERNEL_NS = 10_000


@pytest.mark.parametrize("sync_mode", ["per_iteration", "end_only"])
def test_a_slow_simulation_is_cut_short_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, sync_mode: str
) -> None:
    device = bench.device()
    kernel = device.kernel_of(_KERNEL_NS)
    # Each look at the clock finds a second gone.
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic_ns=lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(closed_loop, "time", clock)
    record = bench.measure(
        device, 1, lambda streams: streams[0].launch(kernel), iterations=1000,
        sync_mode=sync_mode, wall_ns=30_000_000_000,
    )  # fmt: skip
    assert 0 < record.iterations < 1000
    assert record.stopped.startswith("wall-time cap of 30 s, after ")
    assert f"after {record.iterations} of 1000 iterations" in record.stopped
    assert record.samples is not None
    assert len(record.samples.device_ns) == record.iterations


def test_virtual_time_alone_never_reaches_the_wall_cap(bench: Bench) -> None:
    device = bench.device()
    kernel = device.kernel_of(_KERNEL_NS)
    record = bench.measure(device, 1, lambda streams: streams[0].launch(kernel), iterations=100)
    assert record.stopped == "100 iterations"
