"""What a remedy bought: shares of the quiet figure, and no verdict that figures do not carry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.noise.advice import bought

FIGURES = st.floats(1e-3, 1e6)
ROUNDS = st.lists(st.tuples(FIGURES, FIGURES, FIGURES), min_size=2, max_size=8)


def test_a_rate_that_a_remedy_wins_back() -> None:
    found = bought(
        [100.0, 101.0, 100.0], [90.0, 91.91, 92.0], [98.0, 98.98, 98.0], higher_is_worse=False
    )
    left = (0.90 * 0.91 * 0.92) ** (1 / 3)
    assert found.lost.value == pytest.approx(1 - left)
    assert found.won.value == pytest.approx(0.98 - left)
    assert found.won.interval is not None
    assert found.won.interval[0] < 0.07 < found.won.interval[1]
    assert (found.verdict, found.rounds, found.refused) == ("won", 3, {})


def test_a_latency_that_a_remedy_makes_longer() -> None:
    found = bought([10.0] * 4, [15.0, 15.1, 15.0, 15.1], [18.0] * 4, higher_is_worse=True)
    assert found.lost.value == pytest.approx(0.505, abs=1e-4)
    assert found.won.value == pytest.approx(-0.295, abs=1e-4)
    assert found.verdict == "cost"


@pytest.mark.parametrize("figures", [[], [None, 1.0]])
def test_without_rounds_nothing_is_said(figures: list[float | None]) -> None:
    nothing: list[float | None] = [None] * len(figures)
    found = bought(figures, figures, nothing, higher_is_worse=False)
    assert (found.won.value, found.won.interval, found.verdict) == (None, None, "undecided")
    assert set(found.refused) == {"value", "interval"}
    assert (found.rounds, found.left_out) == (0, len(figures))


def test_quiet_runs_that_differ_by_more_than_was_won_carry_no_verdict() -> None:
    noisy, remedied = [50.0, 72.0, 60.0, 68.0], [190.0, 255.0, 180.0, 262.0]
    alike = bought([100.0] * 4, noisy, remedied, higher_is_worse=False)
    assert (alike.verdict, alike.quiet_spread) == ("won", 0)
    assert alike.won.interval is not None
    quiet = [100.0, 250.0, 110.0, 240.0]
    apart = bought(quiet, noisy, remedied, higher_is_worse=False)
    assert apart.verdict == "undecided"
    assert apart.quiet_spread == pytest.approx(1.5)
    assert apart.refused["verdict"] == "quiet runs alone differ by 150 %"
    # What the noise cost stands, as it is said elsewhere.
    assert "value" not in apart.refused


def test_one_round_has_no_interval_and_no_verdict() -> None:
    found = bought([10.0], [5.0], [9.0], higher_is_worse=False)
    assert found.won.value == pytest.approx(0.4)
    assert found.won.interval is None
    assert found.verdict == "undecided"
    assert set(found.refused) == {"interval"}


@pytest.mark.parametrize(
    ("quiet", "says"), [([1.0, 2.0], "as many of each"), ([0.0], "above 0"), ([math.inf], "finite")]
)
def test_what_is_no_figure_is_refused(quiet: list[float | None], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        bought(quiet, [1.0], [1.0], higher_is_worse=False)


@given(ROUNDS)
def test_a_verdict_never_spans_0(rounds: list[tuple[float, float, float]]) -> None:
    quiet, without, remedied = (list(side) for side in zip(*rounds, strict=True))
    found = bought(quiet, without, remedied, higher_is_worse=False)
    if found.won.value is None:
        assert "is wider than" in found.refused["won"]
        assert found.verdict == "undecided"
        return
    assert found.won.interval is not None
    low, high = found.won.interval
    assert found.quiet_spread is not None
    own = high - low - 2 * found.quiet_spread
    assert own <= max(1, abs(found.won.value)) * (1 + 1e-9)
    assert low <= found.won.value <= high
    expected = "won" if low > 0 else "cost" if high < 0 else "undecided"
    assert found.verdict == expected


@given(ROUNDS)
def test_a_remedy_that_changes_nothing_is_never_advised(
    rounds: list[tuple[float, float, float]],
) -> None:
    quiet, without, _ = (list(side) for side in zip(*rounds, strict=True))
    found = bought(quiet, without, without, higher_is_worse=True)
    assert found.won.value in (0, None)
    assert found.verdict == "undecided"


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_a_true_win_is_found_in_about_95_of_100(seed: int) -> None:
    """The interval's coverage, for the spread of a machine that is left alone."""
    generator = np.random.default_rng(seed)
    covered = 0
    for _ in range(200):
        quiet = 100 * np.exp(generator.normal(0, 0.05, 6))
        without = 0.9 * quiet * np.exp(generator.normal(0, 0.02, 6))
        remedied = 0.97 * quiet * np.exp(generator.normal(0, 0.02, 6))
        found = bought(quiet.tolist(), without.tolist(), remedied.tolist(), higher_is_worse=False)
        assert found.won.interval is not None
        covered += found.won.interval[0] <= 0.07 <= found.won.interval[1]
    # Of 200 with 95 %, fewer than 175 happen once in 100,000.
    assert covered >= 175


@given(ROUNDS)
def test_rates_and_latencies_mirror_each_other(rounds: list[tuple[float, float, float]]) -> None:
    quiet, without, remedied = (list(side) for side in zip(*rounds, strict=True))
    rate = bought(quiet, without, remedied, higher_is_worse=False)
    latency = bought(quiet, without, remedied, higher_is_worse=True)
    assert set(rate.refused) == set(latency.refused)
    for of_rate, of_latency in ((rate.won, latency.won), (rate.lost, latency.lost)):
        if of_rate.value is None:
            assert of_latency.value is None
        else:
            assert of_latency.value == pytest.approx(-of_rate.value)


def test_a_gain_that_rounds_do_not_carry_is_refused() -> None:
    """Quiet runs that differ by 41 %, and a remedy that gained 150 % [37, 264]."""
    found = bought(
        [100.0, 141.0, 100.0], [100.0, 141.0, 100.0], [200.0, 428.0, 250.0], higher_is_worse=False
    )
    assert (found.won.value, found.won.interval, found.verdict) == (None, None, "undecided")
    assert "is wider than 100 percentage points and than the figure itself" in found.refused["won"]
