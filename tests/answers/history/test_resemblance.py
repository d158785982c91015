"""Sessions that resemble their predecessors: no steps for it, and intervals that allow for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.history.analysis import drift, find_change_points
from pytest_hwqueue.answers.history.resemblance import (
    coloured,
    greatest_correlation,
    innovations_of,
    without_line,
    without_step,
)
from tools.history_rates import FAMILIES, history_of

RATE = 0.01


def test_a_flat_series_that_resembles_itself_has_no_step() -> None:
    pytest.importorskip("otava", reason="the extra history is not installed")
    found = []
    for seed in range(12):
        logs = 0.02 * FAMILIES["AR 0.7"](np.random.default_rng(seed))
        found.append(bool(find_change_points(np.exp(logs), RATE)))
    # As independent ones, 10 of these had one; 2 % of such series may have.
    assert sum(found) <= 1


def test_an_interval_holds_although_the_place_was_picked_and_sessions_resemble() -> None:
    pytest.importorskip("otava", reason="the extra history is not installed")
    held = []
    for seed in range(8):
        logs = 0.02 * FAMILIES["AR 0.5"](np.random.default_rng(seed))
        logs[30:] += np.log(1.15)
        for each in find_change_points(np.exp(logs), RATE):
            if abs(each.index - 30) <= 3:
                held.append(each.interval[0] <= 1.15 <= each.interval[1])
    assert len(held) >= 6
    # Welch's t at the place picked held in 63 % of such.
    assert sum(held) >= len(held) - 1


def test_what_a_line_explains_is_a_drift_and_no_steps() -> None:
    pytest.importorskip("otava", reason="the extra history is not installed")
    history = history_of(0.02 * FAMILIES["drift of 8 %"](np.random.default_rng(1)))
    assert history.drift is not None
    assert history.drift.whole == pytest.approx(0.083, abs=0.03)
    assert (history.changes, history.resemblance) == ([], None)
    assert history.total_ratio == 1 + history.drift.whole
    assert any("drifting" in note for note in history.notes)


def test_what_only_resembles_itself_hardly_drifts() -> None:
    series = [0.02 * FAMILIES["AR 0.9"](np.random.default_rng(seed)) for seed in range(40)]
    # By Mann and Kendall's test alone, 21 of these do.
    assert sum(drift(np.exp(each).tolist(), []) is not None for each in series) <= 2


@pytest.mark.parametrize("around", [without_step, without_line])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_bound_on_a_correlation_holds_and_falls_with_more_sessions(
    around: object, correlation: float
) -> None:
    bounds = []
    for sessions in (30, 200):
        normal = np.random.default_rng(5).standard_normal((100, sessions))
        rows = coloured(normal, correlation)
        bounds.append([greatest_correlation(row, around) for row in rows])  # type: ignore[arg-type]
        # 10 % lie below, and three standard errors; the bound ends at 0.98.
        assert np.mean(np.less(bounds[-1], correlation)) <= 0.1 + 0.09
    assert np.median(bounds[1]) <= np.median(bounds[0])


@given(st.integers(0, 10**6), st.integers(3, 40), st.floats(0, 0.97))
def test_innovations_make_the_series_that_they_are_of(
    seed: int, sessions: int, correlation: float
) -> None:
    series = np.random.default_rng(seed).normal(5, 1, sessions)
    again = coloured(innovations_of(series, correlation), correlation)
    assert again == pytest.approx(series - series.mean(), abs=1e-9)


@given(st.integers(0, 10**6), st.integers(4, 40), st.floats(-100, 100))
def test_neither_a_step_nor_a_line_counts_as_resemblance(
    seed: int, sessions: int, size: float
) -> None:
    noise = np.random.default_rng(seed).standard_normal((1, sessions))
    line = size * np.arange(sessions)
    assert without_line(noise + line) == pytest.approx(without_line(noise), abs=1e-6)
    step = 1e6 * (np.arange(sessions) >= sessions // 2)
    left = without_step(noise + step)[0]
    assert np.abs(left).max() <= 2 * np.abs(noise).max() + 1e-3
