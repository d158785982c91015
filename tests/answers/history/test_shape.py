"""Modes, drift and resemblance: said of series that have them, and hardly ever of others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pytest_hwqueue.answers.history.analysis import ChangePoint, drift, modes, resemblance, spread

SESSIONS = np.arange(60)


def noise(seed: int, sd: float = 0.02) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).normal(0, sd, len(SESSIONS)))


def said(logs: np.ndarray, places: Sequence[int] = ()) -> tuple[bool, bool, bool]:
    """Whether a series is called bimodal, drifting, resembling its predecessors."""
    values, changes = np.exp(logs), [ChangePoint(place, 1, (1, 1), 0) for place in places]
    return tuple(each(values, changes) is not None for each in (modes, drift, resemblance))  # type: ignore[return-value]


def test_unchanged_series_are_rarely_called_anything() -> None:
    found = np.array([said(noise(seed)) for seed in range(200)]).sum(axis=0)
    # 1 % each: 8 of 200 or more have a chance of 1 in 1000.
    assert (found < 8).all()


def test_two_modes_are_told_with_distance_and_share() -> None:
    slower = np.random.default_rng(5).random(60) < 0.4
    found = modes(np.exp(noise(1) + 0.15 * slower), [])
    assert found is not None
    assert found.ratio == pytest.approx(np.exp(0.15), rel=0.02)
    assert found.slower_share == pytest.approx(slower.mean())


def test_a_step_is_not_two_modes() -> None:
    logs = noise(2) + 0.15 * (SESSIONS >= 30)
    assert said(logs, [30]) == (False, False, False)
    assert said(logs)[0]


def test_outliers_are_not_a_mode() -> None:
    logs = noise(3)
    logs[[7, 31, 50]] += 0.5
    assert not said(logs)[0]


def test_a_ramp_drifts_also_where_steps_approximate_it() -> None:
    logs = noise(4) + 0.004 * SESSIONS
    found = drift(np.exp(logs), [ChangePoint(place, 1.08, (1, 2), 0) for place in (20, 40)])
    assert found is not None
    assert found.per_session == pytest.approx(0.004, rel=0.15)
    assert found.whole == pytest.approx(np.expm1(0.004 * 59), rel=0.15)


def test_a_wandering_series_resembles_its_predecessors() -> None:
    steps, logs = noise(6), np.zeros(60)
    for number in range(1, 60):
        logs[number] = 0.8 * logs[number - 1] + steps[number]
    assert said(logs)[2]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_few_or_equal_sessions_have_no_shape(count: int) -> None:
    for values in ([5.0] * count, [5.0 + number for number in range(count)]):
        assert (modes(values, []), drift(values, []), resemblance(values, [])) == (None,) * 3
    assert (spread([5.0] * count, []) is None) == (count == 1)


def test_the_spread_is_that_within_levels() -> None:
    changes = [ChangePoint(30, 1.5, (1, 2), 0)]
    found = spread(np.exp(noise(8) + 0.4 * (SESSIONS >= 30)), changes)
    assert found == pytest.approx(0.02, rel=0.3)
