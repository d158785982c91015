"""Losses against the quiet turn of the same round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.noise.losses import Loss, paired_losses

FIGURES = st.floats(1e-6, 1e9)


def one(
    quiet: list[float | None], noisy: list[float | None], *, higher_is_worse: bool = False
) -> Loss:
    losses = paired_losses({"none": quiet, "cpu": noisy}, higher_is_worse=higher_is_worse)
    assert list(losses) == ["cpu"]
    return losses["cpu"]


def test_a_rate_that_falls_is_a_loss() -> None:
    loss = one([100, 200, 400], [90, 180, 360])
    assert loss.value == pytest.approx(0.10)
    assert loss.interval is not None
    assert loss.interval[0] < 0.10 < loss.interval[1]
    assert (loss.pairs, loss.left_out, loss.refused) == (3, 0, {})


def test_a_latency_that_rises_is_a_loss() -> None:
    loss = one([100, 200, 400], [120, 240, 480], higher_is_worse=True)
    assert loss.value == pytest.approx(0.20)
    assert loss.interval is not None
    assert 0 < loss.interval[0] < 0.20 < loss.interval[1]


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


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    truth, tries, held = 0.088, 2000, 0
    for _ in range(tries):
        rounds = generator.normal(0, 0.2, 6)
        quiet = np.exp(rounds + generator.normal(0, 0.02, 6))
        noisy = np.exp(rounds + math.log(1 - truth) + generator.normal(0, 0.02, 6))
        interval = one(quiet.tolist(), noisy.tolist()).interval
        assert interval is not None
        held += interval[0] <= truth <= interval[1]
    # Four standard deviations of the binomial around 95 %.
    assert abs(held - 0.95 * tries) < 4 * math.sqrt(tries * 0.95 * 0.05)


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
