"""Overlap efficiency and bandwidth: true values, intervals that hold them, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics import overlap
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import block_count
from pytest_hwqueue.data.metrics.overlap import bandwidth, overlap_efficiency
from tools.coverage import autoregressive

TIMES = st.integers(1, 10**10)
SHORT = st.lists(TIMES, min_size=1, max_size=12)
KINDS = ("compute", "comms", "both")


def noisy(
    median_ns: float, n: int, generator: np.random.Generator, correlation: float = 0.0
) -> list[int]:
    """Durations around a median, each resembling the one before as much as ``correlation``."""
    noise = autoregressive(n, correlation, generator) - 20
    return [round(median_ns * math.exp(0.02 * each)) for each in noise]


def told(figure: Estimate) -> tuple[float, float, float]:
    """The ends of a figure's interval, and the figure in it."""
    assert figure.value is not None
    assert figure.interval is not None
    low, high = figure.interval
    assert low <= figure.value <= high
    return low, figure.value, high


@given(SHORT, SHORT, SHORT)
def test_efficiency_is_that_of_the_medians(
    compute: list[int], comms: list[int], both: list[int]
) -> None:
    a, b = (float(np.median(each)) for each in (compute, comms))
    # As measured; of all hidden and nothing hidden; and not much beyond what is possible.
    for together in (both, [max(a, b)], [a + b], [a + b + min(a, b)], [max(a, b) / 2]):
        result = overlap_efficiency(compute, comms, together)  # type: ignore[arg-type]
        times = (result.compute_ms, result.comms_ms, result.both_ms)
        c = float(np.median(together))
        assert [each.value for each in times] == [a / 1e6, b / 1e6, c / 1e6]
        assert [each.n for each in times] == [len(compute), len(comms), len(together)]
        truth = (a + b - c) / min(a, b)
        swapped = overlap_efficiency(comms, compute, together).efficiency  # type: ignore[arg-type]
        if -1.25 <= truth <= 1.25:
            assert result.efficiency.value == swapped.value == pytest.approx(truth, abs=1e-9)
        else:
            assert (result.efficiency.value, swapped.value) == (None, None)
            assert "than is possible" in result.efficiency.refused


@pytest.mark.parametrize(
    # 2.5 % at each end, widened for 10, 14 and 20 blocks.
    ("n", "tail"), [(50, 0.00855064), (73, 0.01248326), (101, 0.01588083)]
)  # fmt: skip
def test_interval_is_that_of_medians_of_resampled_blocks(n: int, tail: float) -> None:
    samples = np.random.default_rng(n).integers(1, 60, n)
    blocks = np.array_split(samples / 1e6, block_count(n))
    shares = [1 / len(blocks)] * len(blocks)
    drawn = np.random.default_rng(0).multinomial(len(blocks), shares, size=overlap.RESAMPLES)
    medians = [
        np.median(np.concatenate([np.repeat(*each) for each in zip(blocks, row, strict=True)]))
        for row in drawn
    ]
    low, _, high = told(overlap_efficiency(samples.tolist(), [1], [1]).compute_ms)
    assert (low, high) == pytest.approx(np.quantile(medians, [tail, 1 - tail]))


@pytest.mark.parametrize("short", KINDS)
def test_too_few_iterations_have_no_interval(short: str) -> None:
    result = overlap_efficiency(*([5_000_000] * (49 if kind == short else 50) for kind in KINDS))
    assert (result.efficiency.value, result.efficiency.interval) == (1.0, None)
    reason = f"needs at least 50 iterations of {short}, has 49 (1 missing)"
    assert (result.efficiency.n, result.efficiency.refused) == (49, reason)
    for kind in KINDS:
        alone = getattr(result, f"{kind}_ms")
        assert (alone.interval is None) == (alone.refused == reason) == (kind == short)


def test_an_efficiency_that_few_iterations_cannot_tell_is_refused() -> None:
    """As was printed: overlap efficiency -1233 %, from 20 iterations."""
    times = (10_000_000, 100_000, 11_333_000)
    few, dear = (overlap_efficiency(*([each] * n for each in times)) for n in (20, 60))
    reason = "-1233 % is less than is possible, -125 % at least"
    assert (few.efficiency.value, few.efficiency.refused) == (None, reason)
    generator = np.random.default_rng(3)
    wide = overlap_efficiency(*(noisy(m, 60, generator) for m in (4e6, 3e3, 4.01e6)))
    assert wide.efficiency.value is None
    assert "is wider than 100 percentage points" in wide.efficiency.refused
    assert wide.both_ms.value is not None
    # Enough iterations that agree do tell that together cost more than it hides.
    assert told(dear.efficiency)[1] == pytest.approx(-12.33)


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf])
def test_impossible_duration_is_refused(wrong: int) -> None:
    good = [1, 2, 3]
    for series in ([[wrong], good, good], [good, [1, wrong], good], [good, good, [wrong]]):
        with pytest.raises(ValueError, match="finite and above 0 ns"):
            overlap_efficiency(*series)
    with pytest.raises(ValueError, match="finite and above 0 ns"):
        bandwidth([wrong], 1, 1.0)


def test_bandwidth_is_that_of_nccl_tests_and_absent_where_nothing_was_measured() -> None:
    # 128 MiB in 1 ms among 8 ranks: 134.2 GB/s, and an all-reduce sends 2 × 7/8 of it.
    found = bandwidth([1_000_000] * 60, 128 << 20, 7 / 4)
    assert told(found.algorithm) == pytest.approx([134.217728] * 3)
    assert told(found.bus) == pytest.approx([234.881024] * 3)
    varied = noisy(3e6, 80, np.random.default_rng(0))
    low, value, high = told(bandwidth(varied, 10**6, 1.0).algorithm)  # of 10⁶ bytes: 1 over ms
    times = overlap_efficiency(varied, varied, varied)
    assert (1 / high, 1 / value, 1 / low) == pytest.approx(told(times.compute_ms), rel=1e-3)
    assert times != overlap_efficiency(varied, varied, varied, seed=1)
    assert (found.algorithm.n, found.bus.n) == (60, 60)
    one_rank = bandwidth([2_000] * 20, 4_000, 0.0)
    few = "needs at least 50 iterations of comms, has 20 (30 missing)"
    assert one_rank.algorithm == Estimate(value=2.0, n=20, unit="GB/s", refused=few)
    assert one_rank.bus == Estimate(
        n=20, unit="GB/s", refused="with one rank nothing crosses a bus"
    )
    nothing, none = overlap_efficiency([1], [], [1]), bandwidth([], 8, 1.0)
    for absent in (nothing.efficiency, nothing.comms_ms, none.algorithm, none.bus):
        assert (absent.value, absent.refused) == (None, "nothing was measured of comms")
