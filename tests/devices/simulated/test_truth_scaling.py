"""Scaling saturates at the count at which the model does, and is refused where it does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.harness.summary import find_sweeps, scaling_of
from pytest_hwqueue.records.cell import RunRecord

from .conftest import Bench

# Launching and recording for 16 streams takes the host under 0.5 ms, and starting under 0.1 ms;
# the truth takes both for nothing beside kernels of 100 ms.
TOLERANCE = 0.01
# A count saturates with 95 % of the greatest rate: truths nearer to that than the tolerance on
# either side would say nothing.
EDGE = (0.93, 0.97)

COUNTS = (1, 2, 4, 8, 16)
KERNEL_NS = 100_000_000
ITERATIONS = 50
SPLIT_KERNELS = 16
LIMITS = ("connections", "multiprocessors", "concurrent_kernels")


def sweep(bench: Bench, limit: str, most: int, *, strong: bool) -> list[RunRecord]:
    """Records of every count on a device that runs ``most`` kernels at once, and why it does."""
    figures = {"connections": 64, "multiprocessors": 64, "concurrent_kernels": 64, limit: most}
    device = bench.device(block_slots_per_multiprocessor=1, **figures)
    kernel = device.kernel_of(KERNEL_NS)

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            for _ in range(SPLIT_KERNELS // len(streams) if strong else 1):
                stream.launch(kernel)
            stream.record()  # the next stream of this queue begins when this one has ended

    return [
        bench.measure(
            device, streams, enqueue, iterations=ITERATIONS,
            work={"kernels": float(SPLIT_KERNELS if strong else streams)},
        )
        for streams in COUNTS
    ]  # fmt: skip


@settings(max_examples=6, derandomize=True)
@given(limit=st.sampled_from(LIMITS), most=st.integers(1, 16), strong=st.booleans())
@example(limit="connections", most=4, strong=False)
@example(limit="multiprocessors", most=8, strong=True)
@example(limit="multiprocessors", most=6, strong=True)  # three quarters are not full
@example(limit="concurrent_kernels", most=16, strong=False)  # full only with the last count
def test_saturation_is_where_the_device_is_full(
    bench: Bench, limit: str, most: int, strong: bool
) -> None:
    work = {count: SPLIT_KERNELS if strong else count for count in COUNTS}
    if limit == "connections":  # the fullest queue's streams run one after the other
        steps = {count: -(-count // most) * work[count] // count for count in COUNTS}
    else:
        steps = {count: -(-work[count] // min(count, most)) for count in COUNTS}
    rates = [work[count] / steps[count] for count in COUNTS]
    shares = [rate / max(rates) for rate in rates]
    assume(not any(EDGE[0] < share < EDGE[1] for share in shares))
    truth = next(count for count, share in zip(COUNTS, shares, strict=True) if share >= EDGE[1])

    measured = sweep(bench, limit, most, strong=strong)
    assert find_sweeps(measured[:1]) == []
    (records,) = find_sweeps(measured)
    found = scaling_of(records)
    assert (found.unit, found.base_streams) == ("kernels/s", 1)
    assert found.kind == ("strong" if strong else "weak")
    for point, rate, count in zip(found.points, rates, COUNTS, strict=True):
        assert point.streams == count
        assert point.throughput.value == pytest.approx(rate * 1e9 / KERNEL_NS, rel=TOLERANCE)
        speedup = pytest.approx(rate / rates[0], rel=TOLERANCE)
        assert [point.speedup.value, point.speedup.low, point.speedup.high] == [speedup] * 3
        assert point.efficiency.value == pytest.approx(rate / rates[0] / count, rel=TOLERANCE)
    if truth < COUNTS[-1]:
        assert found.saturation_streams == truth
        assert found.saturation_range == (truth, truth)
        if most in COUNTS:
            assert truth == most
    else:
        assert found.saturation_streams is None
        assert found.saturation_range is None
        reason = "not saturated within the counts measured, up to 16 streams"
        assert found.refused["saturation_streams"] == reason
