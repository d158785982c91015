"""A drift is told with its size, and leaves the mean of its window an interval that holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_hwqueue.data.figures import of_requests as figures
from pytest_hwqueue.data.figures.of_requests import ServedRequests
from pytest_hwqueue.data.metrics.drift import MeanInterval, mean_interval
from pytest_hwqueue.data.metrics.latency import throughput
from tools.coverage import autoregressive

Values = NDArray[np.float64]


def drifting(seed: int, n: int, rise: float, correlation: float = 0.0) -> Values:
    """A series around 20 with standard deviation 1 that rises by so much from first to last."""
    noise = autoregressive(n, correlation, np.random.default_rng(seed))
    return noise + rise * np.linspace(-0.5, 0.5, n)


@settings(max_examples=50)
@given(st.integers(400, 3000), st.sampled_from([-1, 1]), st.floats(3, 1000), st.integers(0, 2**31))
def test_a_drift_beyond_the_noise_is_told_and_costs_no_interval(
    n: int, sign: int, rise: float, seed: int
) -> None:
    found = mean_interval([drifting(seed, n, sign * rise)], 0.95)
    assert found.drift == pytest.approx(sign * rise, abs=1)
    # Four times what as many independent samples would leave; without the line, 50 times and more.
    assert found.half_width < 4 * 1.96 / n**0.5


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("n", [100, 1000])
def test_the_interval_is_of_the_windows_mean(n: int, correlation: float) -> None:
    found = [(drifting(seed, n, 10, correlation), 20.0) for seed in range(200)]
    intervals = [(each.mean() - true, mean_interval([each], 0.95)) for each, true in found]
    told = [(off, each) for off, each in intervals if each.drift is not None]
    assert len(told) >= 140
    # 5 % of them and three standard errors.
    missed = sum(abs(off) > each.half_width for off, each in told)
    assert missed <= (0.05 + 3 * (0.05 * 0.95 / len(told)) ** 0.5) * len(told)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.99])
def test_what_wanders_about_one_mean_is_no_drift(correlation: float) -> None:
    series = [autoregressive(300, correlation, np.random.default_rng(seed)) for seed in range(300)]
    assert sum(mean_interval([each], 0.95).drift is not None for each in series) <= 9


def test_of_several_windows_the_one_that_drifts_furthest_is_told() -> None:
    windows = [drifting(1, 500, 0), drifting(2, 500, -20), drifting(3, 500, 10)]
    found = mean_interval(windows, 0.95)
    assert found.drift == pytest.approx(-20, abs=1)
    # That windows lie apart says nothing against their means, with a drift or without.
    apart = mean_interval([windows[0], windows[1] + 100, windows[2]], 0.95)
    assert apart.half_width == pytest.approx(found.half_width)
    assert mean_interval([np.full(9, 3.0)], 0.95) == MeanInterval(0.0)


@pytest.mark.parametrize("n", [100, 1000, 10_000])
def test_one_percent_leaves_a_throughput_its_interval(n: int) -> None:
    durations = drifting(4, n, 0) * 1000 / 20 + 1e6 * np.linspace(0.995, 1.005, n)
    found = throughput(1, durations.tolist(), "x/s")
    assert found.drift == pytest.approx(-0.01, rel=0.05)
    assert found.high / found.low < 1.001
    assert found.low < 1e9 / (1e6 + 1000) < found.high


def test_what_only_wanders_is_refused_for_what_it_does() -> None:
    waves = 1e6 * (1 + 0.01 * np.sin(np.arange(1000) * 2 * np.pi / 1000))
    found = throughput(1, waves.tolist(), "x/s")
    assert (found.interval, found.drift) == (None, None)
    assert found.refused == (
        "durations wander for as long as the window lasts: its tenths differ by 1.97 %"
    )


def test_a_rate_falls_by_what_its_line_says() -> None:
    """From five times as fast to once: by what lies between both ends, over the mean rate."""
    jitter = np.random.default_rng(0).normal(0, 5, 1000)
    found = throughput(1, (np.linspace(1000, 5000, 1000) + jitter).tolist(), "x/s")
    assert found.drift == pytest.approx(3000 / 5000 - 3000 / 1000, rel=0.02)


def test_a_tenant_that_slows_down_has_the_rate_of_its_window() -> None:
    finished = np.cumsum(1e7 * np.linspace(0.9, 1.1, 2000)).astype(int)
    window = ServedRequests(2000, [1] * 2000, finished.tolist(), int(finished[-1]) + 1)
    found = figures.throughput([window], 0.95)
    assert found.drift == pytest.approx(-0.2, rel=0.1)
    assert found.interval is not None
    assert 99 < found.low < 100 < found.high < 101
