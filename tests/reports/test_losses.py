"""Losses against the quiet turn of the same round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.reports.noise_losses import Loss, paired_losses, won_back

FIGURES = st.floats(1e-6, 1e9)


def one(
    quiet: list[float | None], noisy: list[float | None], *, higher_is_worse: bool = False
) -> Loss:
    losses = paired_losses({"none": quiet, "cpu": noisy}, higher_is_worse=higher_is_worse)
    assert list(losses) == ["cpu"]
    return losses["cpu"]


@pytest.mark.parametrize(
    ("noisy", "higher_is_worse", "lost"),
    [([90, 180, 360], False, 0.10), ([120, 240, 480], True, 0.20)],
)
def test_a_rate_that_falls_and_a_latency_that_rises_are_losses(
    noisy: list[float | None], higher_is_worse: bool, lost: float
) -> None:
    loss = one([100, 200, 400], noisy, higher_is_worse=higher_is_worse)
    assert loss.value == pytest.approx(lost)
    assert loss.interval is not None
    assert loss.interval[0] < lost < loss.interval[1]
    assert (loss.pairs, loss.left_out, loss.refused) == (3, 0, {})


def test_what_the_host_does_to_a_whole_round_does_not_widen_the_interval() -> None:
    steady = one([100, 100, 100, 100], [91, 92, 91, 92])
    two_speeds = one([100, 190, 100, 190], [91, 92 * 1.9, 91, 92 * 1.9])
    assert two_speeds.interval == pytest.approx(steady.interval)


def test_a_round_without_one_of_the_two_is_left_out() -> None:
    loss = one([100, None, 300, 400], [90, 10, None, 360])
    assert loss.value == pytest.approx(0.10)
    assert (loss.pairs, loss.left_out) == (2, 2)


def test_too_few_rounds_are_refused_with_what_is_missing() -> None:
    single = one([100], [90])
    assert single.value == pytest.approx(0.10)
    assert single.interval is None
    assert single.refused == {"interval": "needs at least 2 rounds, has 1 (1 missing)"}
    none = one([100], [None])
    assert (none.value, none.interval) == (None, None)
    assert set(none.refused) == {"value", "interval"}


def test_rounds_that_agree_by_chance_do_not_make_it_certain() -> None:
    interval = one([100, 100], [90, 90]).interval
    assert interval is not None
    assert interval[1] - interval[0] > 0.05


def test_a_bound_beyond_all_numbers_is_refused() -> None:
    loss = one([1e-150, 1.0], [1e150, 1.0], higher_is_worse=True)
    assert (loss.value, loss.interval) == (None, None)
    assert "is wider than" in loss.refused["value"]


def test_a_loss_that_two_rounds_cannot_tell_is_refused() -> None:
    """As was printed: lost -485 % [-13535, 75]."""
    loss = one([100, 100], [450, 760])
    assert (loss.value, loss.interval) == (None, None)
    assert "is wider than 100 percentage points and than the figure itself" in loss.refused["value"]
    # Four rounds that agree tell that much.
    sure = one([100, 100, 100, 100], [580, 590, 590, 580])
    assert sure.value == pytest.approx(-4.85, abs=0.01)
    assert sure.interval is not None


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(pairs: list[tuple[float, float]], unit: float) -> None:
    before = one([quiet for quiet, _ in pairs], [noisy for _, noisy in pairs])
    after = one([quiet * unit for quiet, _ in pairs], [noisy * unit for _, noisy in pairs])
    if before.value is None:
        assert (after.value, set(after.refused)) == (None, {"value"})
        return
    assert after.value == pytest.approx(before.value, rel=1e-6, abs=1e-9)
    if before.interval is not None:
        low, high = before.interval
        assert low <= before.value <= high


def test_the_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of a loss and of what a remedy won back, for the spread of a machine that is left alone."""
    generator = np.random.default_rng(7)
    tries, held, won_held = 1000, 0, 0
    for _ in range(tries):
        quiet = np.exp(generator.normal(0, 0.2, 6))
        without = (0.9 * quiet * np.exp(generator.normal(0, 0.02, 6))).tolist()
        quiet = (quiet * np.exp(generator.normal(0, 0.02, 6))).tolist()
        interval = one(quiet, without).interval
        steady = (100 * np.exp(generator.normal(0, 0.05, 6))).tolist()
        noisy, won = (
            [times * each * math.exp(generator.normal(0, 0.02)) for each in steady]
            for times in (0.9, 0.97)
        )
        of_won = won_back(steady, noisy, won, higher_is_worse=False)[1].interval
        assert interval is not None
        assert of_won is not None
        held += interval[0] <= 0.1 <= interval[1]
        won_held += of_won[0] <= 0.07 <= of_won[1]
    # Four standard deviations of the binomial around 95 %; what was won may be told too rarely.
    slack = 4 * math.sqrt(tries * 0.95 * 0.05)
    assert abs(held - 0.95 * tries) < slack
    assert won_held > 0.95 * tries - slack


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"cpu": [1.0]}, "no figures of 'none'"),
        ({"none": [1.0], "cpu": [1.0, 2.0]}, "cpu has 2 rounds, none 1"),
        ({"none": [1.0], "cpu": [0.0]}, "cpu is not finite and above 0: 0.0"),
        ({"none": [math.nan], "cpu": [1.0]}, "none is not finite and above 0: nan"),
    ],
)
def test_what_cannot_be_paired(figures: dict[str, list[float | None]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_losses(figures, higher_is_worse=False)


ROUNDS = st.lists(st.tuples(*[st.floats(1e-3, 1e6)] * 3), min_size=2, max_size=8)


def verdict(won: Loss) -> str:
    assert won.undecided or won.value is not None
    return "undecided" if won.undecided else "won" if (won.value or 0) > 0 else "cost"


def test_a_rate_that_a_remedy_wins_back() -> None:
    lost, won = won_back(
        [100.0, 101.0, 100.0], [90.0, 91.91, 92.0], [98.0, 98.98, 98.0], higher_is_worse=False
    )
    left = (0.90 * 0.91 * 0.92) ** (1 / 3)
    assert lost.value == pytest.approx(1 - left)
    assert won.value == pytest.approx(0.98 - left)
    assert won.interval is not None
    assert won.interval[0] < 0.07 < won.interval[1]
    assert (verdict(won), won.pairs, won.refused) == ("won", 3, {})


def test_a_latency_that_a_remedy_makes_longer() -> None:
    lost, won = won_back([10.0] * 4, [15.0, 15.1, 15.0, 15.1], [18.0] * 4, higher_is_worse=True)
    assert lost.value == pytest.approx(0.505, abs=1e-4)
    assert won.value == pytest.approx(-0.295, abs=1e-4)
    assert verdict(won) == "cost"


@pytest.mark.parametrize("figures", [[], [None, 1.0]])
def test_without_rounds_nothing_is_won(figures: list[float | None]) -> None:
    nothing: list[float | None] = [None] * len(figures)
    _, won = won_back(figures, figures, nothing, higher_is_worse=False)
    assert (won.value, won.interval, verdict(won)) == (None, None, "undecided")
    assert set(won.refused) == {"value", "interval"}
    assert (won.pairs, won.left_out) == (0, len(figures))


def test_quiet_runs_that_differ_by_more_than_was_won_carry_no_verdict() -> None:
    noisy, remedied = [50.0, 72.0, 60.0, 68.0], [190.0, 255.0, 180.0, 262.0]
    _, alike = won_back([100.0] * 4, noisy, remedied, higher_is_worse=False)
    assert verdict(alike) == "won"
    lost, apart = won_back([100.0, 250.0, 110.0, 240.0], noisy, remedied, higher_is_worse=False)
    assert verdict(apart) == "undecided"
    assert apart.refused == {"sign": "quiet runs alone differ by 150 %"}
    # What the noise cost stands, as it is said elsewhere.
    assert lost.value is not None


def test_one_round_has_no_interval_and_no_verdict() -> None:
    _, won = won_back([10.0], [5.0], [9.0], higher_is_worse=False)
    assert won.value == pytest.approx(0.4)
    assert (won.interval, verdict(won), set(won.refused)) == (None, "undecided", {"interval"})


def test_a_remedys_figure_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="remedy is not finite and above 0"):
        won_back([1.0], [1.0], [math.inf], higher_is_worse=False)


@given(ROUNDS)
def test_a_verdict_never_spans_0(rounds: list[tuple[float, float, float]]) -> None:
    quiet, without, remedied = (list(side) for side in zip(*rounds, strict=True))
    _, won = won_back(quiet, without, remedied, higher_is_worse=False)
    if won.value is None:
        assert "is wider than" in won.refused["value"]
        assert verdict(won) == "undecided"
        return
    assert won.interval is not None
    low, high = won.interval
    own = high - low - 2 * (max(quiet) / min(quiet) - 1)
    assert own <= max(1, abs(won.value)) * (1 + 1e-9)
    assert low <= won.value <= high
    assert verdict(won) == ("won" if low > 0 else "cost" if high < 0 else "undecided")


@given(ROUNDS)
def test_a_remedy_that_changes_nothing_won_nothing(
    rounds: list[tuple[float, float, float]],
) -> None:
    quiet, without, _ = (list(side) for side in zip(*rounds, strict=True))
    _, won = won_back(quiet, without, without, higher_is_worse=True)
    assert won.value in (0, None)
    assert verdict(won) == "undecided"


@given(ROUNDS)
def test_what_is_won_of_rates_and_latencies_mirrors(
    rounds: list[tuple[float, float, float]],
) -> None:
    quiet, without, remedied = (list(side) for side in zip(*rounds, strict=True))
    rate = won_back(quiet, without, remedied, higher_is_worse=False)
    latency = won_back(quiet, without, remedied, higher_is_worse=True)
    for of_rate, of_latency in zip(rate, latency, strict=True):
        assert set(of_rate.refused) == set(of_latency.refused)
        if of_rate.value is None:
            assert of_latency.value is None
        else:
            assert of_latency.value == pytest.approx(-of_rate.value)


def test_a_gain_that_rounds_do_not_carry_is_refused() -> None:
    """Quiet runs that differ by 41 %, and a remedy that gained 150 % [37, 264]."""
    _, won = won_back(
        [100.0, 141.0, 100.0], [100.0, 141.0, 100.0], [200.0, 428.0, 250.0], higher_is_worse=False
    )
    assert (won.value, won.interval, verdict(won)) == (None, None, "undecided")
    assert "is wider than 100 percentage points and than the figure itself" in won.refused["value"]
