"""Overlap efficiency and bandwidth: true values, intervals that hold them, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.metrics.latency import LEAST_ITERATIONS, block_count
from pytest_hwqueue.metrics.overlap import (
    RESAMPLES,
    Bandwidth,
    OverlapEfficiency,
    bandwidth,
    overlap_efficiency,
)

TIMES = st.integers(1, 10**10)
SHORT = st.lists(TIMES, min_size=1, max_size=12)


def noisy(
    median_ns: float, n: int, generator: np.random.Generator, correlation: float = 0.0
) -> list[int]:
    """Durations around a median, each resembling the one before as much as ``correlation``."""
    noise = generator.standard_normal(n)
    for index in range(1, n):
        fresh = np.sqrt(1 - correlation**2) * noise[index]
        noise[index] = correlation * noise[index - 1] + fresh
    durations: list[int] = np.rint(median_ns * np.exp(0.02 * noise)).astype(int).tolist()
    return durations


@given(TIMES, TIMES, st.integers(1, 10**6))
def test_extremes(compute: int, comms: int, other: int) -> None:
    longer, both = max(compute, comms), compute + comms
    assume(longer >= 2)
    for together, efficiency in ((longer, 1.0), (both, 0.0)):
        found = overlap_efficiency([compute], [comms], [together]).efficiency
        assert found is not None
        assert found.value == pytest.approx(efficiency, abs=1e-9)
    # Slower than one after the other is below 0, and noise may be above 1, as far as is possible.
    for together in (both + other, longer - 1):
        truth = (both - together) / min(compute, comms)
        result = overlap_efficiency([compute], [comms], [together])
        if -1.25 <= truth <= 1.25:
            assert result.efficiency is not None
            assert result.efficiency.value == pytest.approx(truth, abs=1e-9)
        elif abs(truth) > 1.26:
            assert result.efficiency is None
            assert "than is possible" in result.refused["efficiency"]


@given(SHORT, SHORT, SHORT)
def test_efficiency_is_that_of_the_medians(
    compute: list[int], comms: list[int], both: list[int]
) -> None:
    result = overlap_efficiency(compute, comms, both)
    a, b, c = (float(np.median(each)) for each in (compute, comms, both))
    figures = (result.compute_ms, result.comms_ms, result.both_ms)
    assert [figure and figure.value for figure in figures] == [a / 1e6, b / 1e6, c / 1e6]
    truth = (a + b - c) / min(a, b)
    swapped = overlap_efficiency(comms, compute, both).efficiency
    if -1.25 <= truth <= 1.25:
        assert result.efficiency is not None
        assert swapped is not None
        assert result.efficiency.value == swapped.value == pytest.approx(truth)
    else:
        assert (result.efficiency, swapped) == (None, None)
    assert result.n == {"compute": len(compute), "comms": len(comms), "both": len(both)}


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(2, 1000))
def test_efficiency_has_no_unit_and_times_have(seed: int, factor: int) -> None:
    generator = np.random.default_rng(seed)
    series = [noisy(median, 60, generator) for median in (4e6, 3e6, 5e6)]
    result = overlap_efficiency(*series)
    longer = overlap_efficiency(*([factor * each for each in samples] for samples in series))
    for one, other, by in (
        (result.efficiency, longer.efficiency, 1),
        (result.both_ms, longer.both_ms, factor),
    ):
        assert one is not None
        assert other is not None
        assert one.interval is not None
        assert one.interval[0] <= one.value <= one.interval[1]
        assert other.value == pytest.approx(by * one.value)
        assert other.interval == pytest.approx((by * one.interval[0], by * one.interval[1]))
    assert result.refused == {}
    again = overlap_efficiency(*series)
    assert again == result
    assert overlap_efficiency(*series, seed=1) != result


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_interval_holds_the_true_efficiency(correlation: float) -> None:
    generator = np.random.default_rng(11)
    held, widths = 0, []
    for _ in range(30):
        series = [noisy(median, 100, generator, correlation) for median in (4e6, 3e6, 5e6)]
        found = overlap_efficiency(*series).efficiency
        assert found is not None
        assert found.interval is not None
        low, high = found.interval
        held += low <= 2 / 3 <= high
        widths.append(high - low)
    # At 95 % fewer than 25 of 30 happen once in 300 times. An interval of everything holds too.
    assert held >= 25
    assert 0.01 < np.median(widths) < 0.1


@pytest.mark.parametrize(
    # 2.5 % at each end, widened for 10, 14 and 20 blocks.
    ("n", "tail"), [(50, 0.00855064), (73, 0.01248326), (101, 0.01588083)]
)  # fmt: skip
def test_interval_is_that_of_medians_of_resampled_blocks(n: int, tail: float) -> None:
    samples = np.random.default_rng(n).integers(1, 60, n)
    blocks = np.array_split(samples / 1e6, block_count(n))
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(len(blocks), [1 / len(blocks)] * len(blocks), size=RESAMPLES)
    medians = [
        np.median(np.concatenate([np.repeat(*each) for each in zip(blocks, row, strict=True)]))
        for row in drawn
    ]
    found = overlap_efficiency(samples.tolist(), [1], [1]).compute_ms
    assert found is not None
    assert found.interval == pytest.approx(np.quantile(medians, [tail, 1 - tail]))


def test_longer_series_give_narrower_intervals() -> None:
    generator = np.random.default_rng(5)
    widths = []
    for n in (60, 240, 960):
        found = overlap_efficiency(*(noisy(m, n, generator) for m in (4e6, 3e6, 5e6))).efficiency
        assert found is not None
        assert found.interval is not None
        widths.append(found.interval[1] - found.interval[0])
    # As the root of the number, within the luck of the draw.
    assert 1.4 < widths[0] / widths[1] < 3.5
    assert 1.4 < widths[1] / widths[2] < 3.0


@pytest.mark.parametrize("short", ["compute", "comms", "both"])
def test_too_few_iterations_have_no_interval(short: str) -> None:
    n = {"compute": LEAST_ITERATIONS, "comms": LEAST_ITERATIONS, "both": LEAST_ITERATIONS}
    n[short] -= 1
    result = overlap_efficiency(*([5_000_000] * count for count in n.values()))
    assert result.efficiency is not None
    assert (result.efficiency.value, result.efficiency.interval) == (1.0, None)
    reason = f"needs at least 50 iterations of {short}, has 49 (1 missing)"
    assert result.refused == {f"{short}_ms interval": reason, "efficiency interval": reason}
    times = {"compute": result.compute_ms, "comms": result.comms_ms, "both": result.both_ms}
    for name, figure in times.items():
        assert figure is not None
        assert (figure.interval is None) == (name == short)


def test_an_efficiency_that_few_iterations_cannot_tell_is_refused() -> None:
    """As was printed: overlap efficiency -1233 %, from 20 iterations."""
    few = overlap_efficiency([10_000_000] * 20, [100_000] * 20, [11_333_000] * 20)
    assert few.efficiency is None
    assert few.refused["efficiency"] == "-1233 % is less than is possible, -125 % at least"
    generator = np.random.default_rng(3)
    wide = overlap_efficiency(*(noisy(m, 60, generator) for m in (4e6, 3e3, 4.01e6)))
    assert wide.efficiency is None
    assert "is wider than 100 percentage points" in wide.refused["efficiency"]
    assert wide.both_ms is not None
    # Enough iterations that agree do tell that together cost more than it hides.
    dear = overlap_efficiency([10_000_000] * 60, [100_000] * 60, [11_333_000] * 60)
    assert dear.efficiency is not None
    assert dear.efficiency.value == pytest.approx(-12.33)


def test_what_was_not_measured_is_refused() -> None:
    result = overlap_efficiency([1], [], [1])
    assert (result.efficiency, result.comms_ms) == (None, None)
    assert result.refused["efficiency"] == "nothing was measured of comms"
    assert result.refused["comms_ms"] == "nothing was measured of comms"
    assert bandwidth([], 8, 1.0).refused == {
        "algorithm": "nothing was measured of comms",
        "bus": "nothing was measured of comms",
    }


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_impossible_duration_is_refused(wrong: int) -> None:
    good = [1, 2, 3]
    for series in ([[wrong], good, good], [good, [1, wrong], good], [good, good, [wrong]]):
        with pytest.raises(ValueError, match="finite and above 0 ns"):
            overlap_efficiency(*series)
    with pytest.raises(ValueError, match="finite and above 0 ns"):
        bandwidth([wrong], 1, 1.0)


def test_bandwidth_is_that_of_nccl_tests() -> None:
    # 128 MiB in 1 ms among 8 ranks: 134.2 GB/s, and an all-reduce sends 2 × 7/8 of it.
    found = bandwidth([1_000_000] * 60, 128 << 20, 7 / 4)
    assert found.algorithm is not None
    assert found.bus is not None
    assert found.algorithm.value == pytest.approx(134.217728)
    assert found.bus.value == pytest.approx(234.881024)
    assert found.bus.interval == pytest.approx((234.881024, 234.881024))
    assert (found.n, found.refused) == (60, {})


def test_one_rank_has_no_bus() -> None:
    found = bandwidth([2_000] * 20, 4_000, 0.0)
    assert found.algorithm is not None
    assert (found.algorithm.value, found.algorithm.interval) == (2.0, None)
    assert found.bus is None
    assert found.refused == {
        "algorithm interval": "needs at least 50 iterations of comms, has 20 (30 missing)",
        "bus": "with one rank nothing crosses a bus",
    }


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.floats(0.1, 2))
def test_bandwidth_and_its_interval_turn_time_round(seed: int, factor: float) -> None:
    times = noisy(3e6, 80, np.random.default_rng(seed))
    found = bandwidth(times, 10**6, factor)
    time = overlap_efficiency(times, times, times).compute_ms
    assert time is not None
    assert time.interval is not None
    assert found.algorithm is not None
    assert found.bus is not None
    assert found.algorithm.interval is not None
    assert found.bus.interval is not None
    # The same resamples: one GB/s is 10⁶ bytes in 1 ms.
    assert found.algorithm.value == pytest.approx(1 / time.value)
    low, high = found.algorithm.interval
    assert (1 / high, 1 / low) == pytest.approx(time.interval, rel=1e-3)
    assert found.bus.interval == pytest.approx((factor * low, factor * high))


def test_results_are_plain_data() -> None:
    generator = np.random.default_rng(1)
    series = [noisy(median, 60, generator) for median in (4e6, 3e6, 5e6)]
    overlap = overlap_efficiency(*series)
    assert OverlapEfficiency.model_validate(json.loads(overlap.model_dump_json())) == overlap
    found = bandwidth(series[1], 1000, 0.5)
    assert Bandwidth.model_validate(json.loads(found.model_dump_json())) == found
