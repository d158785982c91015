"""Losses against the quiet turn of the same round, and what a remedy won back of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.noise import Machine, NoiseRound
from pytest_hwqueue.judge.losses import device_interrupts, paired_losses, waiting_share, won_back

Figures = list[float | None]
FIGURES = st.floats(1e-6, 1e9)
ROUNDS = st.lists(st.tuples(*[st.floats(1e-3, 1e6)] * 3), min_size=2, max_size=8)
WIDE = "is wider than 100 percentage points and than the figure itself"
NEEDED, ONE_MORE = "needs at least 1 rounds", "needs at least 2 rounds, has 1 (1 missing)"


def test_device_interrupts_are_a_rate_of_the_time_measured(
    make_record: Callable[..., RunRecord],
) -> None:
    machine = Machine(pressure_share={}, softirqs={}, interrupts={"device": 30}, steal_s=None)
    seen = NoiseRound(
        noise="none", status="quiet", started="2026-01-01T00:00:00+00:00", duration_s=4.0,
        autogroup_enabled=None, measured=None, measured_on_cpu_s=1.0, measured_run_delay_s=0.5,
        core_speed_per_s=None, remedy=None, neighbours=[], machine=machine,
    )  # fmt: skip
    record = make_record(noise=seen)
    assert device_interrupts(record) == 7.5
    assert waiting_share(record) == 0.125
    unseen = machine.model_copy(update={"missing": {"interrupts": "no /proc"}})
    for change in ({"machine": unseen}, {"duration_s": 0.0}):
        lacking = record.model_copy(update={"noise": seen.model_copy(update=change)})
        assert device_interrupts(lacking) is None
    assert device_interrupts(record.model_copy(update={"noise": None})) is None


def one(quiet: Figures, noisy: Figures, *, higher_is_worse: bool = False) -> Estimate:
    losses = paired_losses({"none": quiet, "cpu": noisy}, higher_is_worse=higher_is_worse)
    assert list(losses) == ["cpu"]
    return losses["cpu"]


def verdict(won: Estimate) -> str:
    """What is said: an interval without an end spans 0."""
    return "won" if won.low > 0 else "cost" if won.high < 0 else "undecided"


def assert_says(loss: Estimate, value: float | None, refused: str) -> None:
    """Compare a figure and why it, its interval or its sign is missing."""
    assert loss.value == (None if value is None else pytest.approx(value, abs=1e-4))
    assert refused in loss.refused if refused else not loss.refused
    if value is None or refused == ONE_MORE:
        assert loss.interval is None
    else:
        assert loss.low < value < loss.high


@pytest.mark.parametrize(("quiet", "noisy", "longer", "value", "refused", "n"), [
    ([100, 200, 400], [90, 180, 360], False, 0.10, "", 3),
    ([100, 200, 400], [120, 240, 480], True, 0.20, "", 3),
    ([100, None, 300, 400], [90, 10, None, 360], False, 0.10, "", 2),
    ([100], [90], False, 0.10, ONE_MORE, 1),
    ([100], [None], False, None, NEEDED, 0),
    # A bound beyond all numbers.
    ([1e-150, 1.0], [1e150, 1.0], True, None, "differ too much", 2),
    # As was printed: lost -485 % [-13535, 75]. Four rounds that agree tell that much.
    ([100, 100], [450, 760], False, None, WIDE, 2),
    ([100, 100, 100, 100], [580, 590, 590, 580], False, -4.8498, "", 4),
])  # fmt: skip
def test_a_loss_has_an_interval_or_is_refused(
    quiet: Figures, noisy: Figures, longer: bool, value: float | None, refused: str,
    n: int,
) -> None:  # fmt: skip
    loss = one(quiet, noisy, higher_is_worse=longer)
    assert_says(loss, value, refused)
    assert loss.n == n


def test_the_interval_is_of_rounds_and_not_of_chance() -> None:
    """What a host does to a whole round does not widen it; two rounds that agree are no proof."""
    steady = one([100, 100, 100, 100], [91, 92, 91, 92])
    two_speeds = one([100, 190, 100, 190], [91, 92 * 1.9, 91, 92 * 1.9])
    assert two_speeds.interval == pytest.approx(steady.interval)
    chance = one([100, 100], [90, 90]).interval
    assert chance is not None
    assert chance[1] - chance[0] > 0.05


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(pairs: list[tuple[float, float]], unit: float) -> None:
    before = one([quiet for quiet, _ in pairs], [noisy for _, noisy in pairs])
    after = one([quiet * unit for quiet, _ in pairs], [noisy * unit for _, noisy in pairs])
    if before.value is None:
        assert after.value is None
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


LEFT = (0.90 * 0.91 * 0.92) ** (1 / 3)
APART = "quiet runs alone differ by 150 %"


@pytest.mark.parametrize(("quiet", "without", "remedied", "longer", "won", "said", "refused"), [
    ([100.0, 101, 100], [90.0, 91.91, 92], [98, 98.98, 98.0], False, 0.98 - LEFT, "won", ""),
    ([10.0] * 4, [15.0, 15.1, 15.0, 15.1], [18.0] * 4, True, -0.295, "cost", ""),
    ([], [], [], False, None, "undecided", NEEDED),
    ([None, 1.0], [None, 1.0], [None, None], False, None, "undecided", NEEDED),
    ([10.0], [5.0], [9.0], False, 0.4, "undecided", ONE_MORE),
    # Quiet runs that differ by 41 %, and a remedy that gained 150 % [37, 264].
    ([100, 141, 100], [100, 141, 100], [200, 428, 250], False, None, "undecided", WIDE),
    ([100.0] * 4, [50, 72, 60, 68], [190, 255, 180, 262], False, 1.5673, "won", ""),
    # Quiet runs that differ by more than was won carry no verdict.
    ([100, 250, 110, 240], [50, 72, 60, 68], [190, 255, 180, 262], False, 0.9778, "undecided",
     APART),
])  # fmt: skip
def test_what_a_remedy_won_is_judged_only_if_rounds_carry_it(
    quiet: Figures, without: Figures, remedied: Figures, longer: bool, won: float | None, said: str,
    refused: str,
) -> None:  # fmt: skip
    lost, found = won_back(quiet, without, remedied, higher_is_worse=longer)
    assert_says(found, won, refused)
    assert verdict(found) == said
    pairs = sum(None not in each for each in zip(quiet, without, remedied, strict=True))
    assert found.n == pairs
    # What the noise cost stands, as it is said elsewhere.
    stands = one(quiet, without, higher_is_worse=longer) if pairs else lost
    assert lost.value == (None if not pairs else pytest.approx(stands.value))


def sides(rounds: Sequence[tuple[float, ...]]) -> list[Figures]:
    return [list(side) for side in zip(*rounds, strict=True)]


@given(ROUNDS)
def test_a_verdict_never_spans_0_and_rates_and_latencies_mirror(
    rounds: list[tuple[float, float, float]],
) -> None:
    quiet, without, remedied = sides(rounds)
    rate = won_back(quiet, without, remedied, higher_is_worse=False)
    latency = won_back(quiet, without, remedied, higher_is_worse=True)
    for of_rate, of_latency in zip(rate, latency, strict=True):
        assert bool(of_rate.refused) == bool(of_latency.refused)
        mirrored = None if of_rate.value is None else pytest.approx(-of_rate.value)
        assert of_latency.value == mirrored
    # A remedy that changes nothing won nothing.
    _, nothing = won_back(quiet, without, without, higher_is_worse=True)
    assert (nothing.value in (0, None), verdict(nothing)) == (True, "undecided")
    won = rate[1]
    if won.value is None:
        assert "is wider than" in won.refused
        assert verdict(won) == "undecided"
        return
    assert won.interval is not None
    low, high = won.interval
    told = [each for (each, *_) in rounds]
    own = high - low - 2 * (max(told) / min(told) - 1)
    assert own <= max(1, abs(won.value)) * (1 + 1e-9)
    assert low <= won.value <= high
    assert verdict(won) == ("won" if low > 0 else "cost" if high < 0 else "undecided")
