"""Where a cell's figure cannot be judged, its time per iteration is; worse is never weaker."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.gate.calibrate import can_convict
from pytest_hwqueue.gate.cell_gate import CellGate, can_be_convicted
from pytest_hwqueue.gate.conclude import conclude
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.verdict import (
    ITERATION_TIME,
    P95,
    P99,
    GateSettings,
    Quantity,
    Verdict,
    fall_back,
)

SETTINGS = GateSettings()
CELLS = 100
P95_FOR_P99 = replace(P95, demoted_from="P99")
ORDER = ("pass", "inconclusive", "regression")


def runs(
    count: int, *, slower: float = 1.0, noise: float = 0.02, n: int = 1000, seed: int = 0
) -> list[ProcessRun]:
    """Runs whose figure has the given noise, and whose time per iteration differs by 2 %."""
    rng = random.Random(seed)
    return [
        ProcessRun(
            slower * math.exp(rng.gauss(0, noise)),
            n,
            f"s{seed}.{i}" if not seed else "new",
            iteration_ns=slower * 1e6 * math.exp(rng.gauss(0, 0.02)),
        )
        for i in range(count)
    ]


def cell_of(
    old: Sequence[ProcessRun],
    new: Sequence[ProcessRun],
    quantity: Quantity = P99,
    cells: int = CELLS,
) -> CellGate:
    cell = CellGate(old, quantity, SETTINGS, cells)
    for run in new:
        cell.add(run)
    return cell


def verdict_of(
    old: Sequence[ProcessRun],
    new: Sequence[ProcessRun],
    quantity: Quantity = P99,
    cells: int = CELLS,
) -> Verdict:
    cell = cell_of(old, new, quantity, cells)
    return conclude(cell, cell.p <= SETTINGS.rate / cells)


# ------------------------------------------------------------------ who is on trial
def test_figure_and_time_per_iteration_are_both_on_trial() -> None:
    cell = cell_of(runs(10), runs(8, slower=1.3, seed=1))
    assert (cell.main_on_trial, cell.companion_on_trial) == (True, True)
    verdict = conclude(cell, True)
    assert (verdict.reason, verdict.by) == ("worse", "p99")
    assert "time per iteration" not in verdict.sentence


@pytest.mark.parametrize("slower", [1.0, 1.2, 3.0, 100.0])
def test_a_shift_is_not_taken_for_noise(slower: float) -> None:
    new = [replace(run, iteration_ns=1e6) for run in runs(8, slower=slower, seed=1)]
    assert not cell_of(runs(10), new).companion_stands_in


def test_a_middle_slower_by_15_percent_is_found_whatever_the_range_of_the_runs() -> None:
    for seed in range(1, 40):
        new = [
            replace(each, iteration_ns=1.15 * (each.iteration_ns or 0))
            for each in runs(15, seed=seed)
        ]
        assert verdict_of(runs(10), new).reason == "slower-iterations", seed


@pytest.mark.parametrize("slower", [1.5, 2.0, 50.0, 1000.0])
def test_longer_iterations_convict_where_the_latency_judged_stays(slower: float) -> None:
    new = [replace(run, iteration_ns=slower * (run.iteration_ns or 0)) for run in runs(15, seed=1)]
    cell = cell_of(runs(10), new[:2])
    assert (cell.main_on_trial, cell.companion_on_trial) == (True, True)
    verdict = verdict_of(runs(10), new)
    assert (verdict.state, verdict.reason) == ("regression", "slower-iterations")
    assert verdict.companion is not None
    assert verdict.companion.ratio == pytest.approx(slower, rel=0.05)


def test_noisy_iterations_keep_no_cell_from_passing_whose_figure_sees_enough() -> None:
    rng = random.Random(5)
    wide = [replace(run, iteration_ns=1e6 * math.exp(rng.gauss(0, 0.3))) for run in runs(10)]
    new = [replace(run, iteration_ns=1e6 * math.exp(rng.gauss(0, 0.3))) for run in runs(15, seed=1)]
    cell = cell_of(wide, new)
    assert cell.companion_on_trial
    assert cell.companion is not None
    assert not cell.companion.excludes(SETTINGS)
    assert verdict_of(wide, new).state == "pass"


def test_much_shorter_iterations_do_not_keep_a_cell_from_passing() -> None:
    new = [replace(run, iteration_ns=0.1 * (run.iteration_ns or 0)) for run in runs(8, seed=1)]
    assert verdict_of(runs(10), new).state == "pass"


def test_a_noisy_figure_shares_its_rate_with_the_time_per_iteration() -> None:
    cells = 40
    cell = cell_of(runs(10, noise=0.5), runs(15, slower=1.2, noise=0.5, seed=1), cells=cells)
    assert (cell.main_on_trial, cell.companion_on_trial, cell.tests) == (True, True, 2)
    verdict = conclude(cell, cell.p <= SETTINGS.rate / cells)
    assert (verdict.state, verdict.reason) == ("regression", "slower-iterations")
    assert verdict.by == ITERATION_TIME.name
    look = verdict.history[-1]
    assert look.p_companion <= SETTINGS.rate / cells < look.p_worse


def test_an_unchanged_noisy_cell_stays_blind_and_names_what_sees_more() -> None:
    verdict = verdict_of(runs(10, noise=0.5), runs(15, noise=0.5, seed=1))
    assert (verdict.state, verdict.reason) == ("inconclusive", "blind")
    assert verdict.companion is not None
    assert verdict.companion.upper < 0.05
    assert verdict.companion.words in verdict.sentence
    assert verdict.companion.words in verdict.line


def test_no_companion_without_a_time_of_every_run() -> None:
    old = runs(10)
    old[3] = replace(old[3], iteration_ns=None)
    assert cell_of(old, runs(2, seed=1)).companion is None
    timed = [replace(run, value=run.iteration_ns or 0.0) for run in runs(10)]
    assert cell_of(timed, runs(2, seed=1), ITERATION_TIME).companion is None


# ------------------------------------------------------------------ too short, and demoted
def test_a_stand_in_never_passes_and_says_its_own_name() -> None:
    verdict = verdict_of(runs(10, n=100), runs(2, n=100, seed=1), P95_FOR_P99)
    assert (verdict.state, verdict.reason) == ("inconclusive", "demoted")
    assert verdict.quantity.label == "P95"
    assert "100 samples are too few for P99: P95 " in verdict.sentence
    assert "time per iteration" in verdict.sentence


def test_a_stand_in_alone_never_convicts() -> None:
    old = [replace(run, iteration_ns=None) for run in runs(10, n=100)]
    new = [replace(run, iteration_ns=None) for run in runs(15, slower=2, n=100, seed=1)]
    assert not can_be_convicted(old, P95_FOR_P99)
    verdict = verdict_of(old, new, P95_FOR_P99)
    assert (verdict.state, verdict.reason, verdict.p) == ("inconclusive", "demoted", 1.0)
    assert can_be_convicted(runs(10, n=100), P95_FOR_P99)


def test_a_stand_in_that_got_worse_alone_is_inconclusive() -> None:
    """The P95 doubled and the mean iteration did not: P99 was asked for, and nobody can tell."""
    new = [replace(run, value=2 * run.value) for run in runs(15, n=100, seed=1)]
    verdict = verdict_of(runs(10, n=100), new, P95_FOR_P99)
    assert (verdict.state, verdict.reason) == ("inconclusive", "demoted")


def test_a_collapse_of_n_convicts() -> None:
    """So slow that a run has 3 samples: no quantile, and no doubt."""
    verdict = verdict_of(runs(10), runs(15, slower=150, n=3, seed=1))
    assert (verdict.state, verdict.reason) == ("regression", "slower-iterations")
    assert verdict.line.startswith("time per iteration +15005.4 % (at most ")
    without = [replace(run, iteration_ns=None) for run in runs(15, slower=150, n=3, seed=1)]
    assert verdict_of(runs(10), without).reason == "too-few-samples"


def test_a_short_run_may_have_no_figure_at_all() -> None:
    new = [replace(run, value=math.nan) for run in runs(15, slower=150, n=0, seed=1)]
    verdict = verdict_of(runs(10), new)
    assert (verdict.state, verdict.reason, verdict.ratio) == (
        "regression",
        "slower-iterations",
        None,
    )


def test_runs_too_short_that_are_no_slower_are_inconclusive() -> None:
    verdict = verdict_of(runs(10, n=20), runs(2, n=20, seed=1))
    assert (verdict.state, verdict.reason) == ("inconclusive", "too-few-samples")
    assert len(verdict.history) == 1


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.05, 0.3]))
def test_worse_is_never_weaker(seed: int, noise: float) -> None:
    """From x 1.1 to x 1000, the runs ending by time: n falls as 1 / slowdown."""
    old = runs(10, noise=noise)
    ranks = []
    for slower in (1.1, 1.5, 2, 3, 5, 10, 50, 150, 1000):
        n = max(1, min(1000, round(2000 / slower)))
        quantity = fall_back(P99, n) or P99
        stated = [replace(run, n=n) for run in old]
        new = runs(15, slower=slower, noise=noise, n=n, seed=seed + 1)
        ranks.append(ORDER.index(verdict_of(stated, new, quantity).state))
    assert ranks == sorted(ranks)
    assert ranks[-1] == ORDER.index("regression")


SLOWER = (1.1, 1.12, 1.15, 1.18, 1.2, 1.22, 1.3, 2, 5, 50, 1000)


@pytest.mark.parametrize("failed", [0, 1])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("baseline", range(3, 13))
def test_worse_is_never_weaker_however_few_runs(baseline: int, stays: bool, failed: int) -> None:
    """Whether or not the latency judged gets slower too, among 1 to 500 cells."""
    old = [replace(run, failed=failed if i == 0 else 0) for i, run in enumerate(runs(baseline))]
    for cells in (1, 5, 10, 40, 58, 59, 100, 109, 116, 117, 203, 204, 300, 406, 407, 500):
        found = []
        for slower in SLOWER:
            new = runs(15, slower=slower, seed=1)
            if stays:
                new = [replace(run, value=run.value / slower) for run in new]
            verdict = verdict_of(old, new, cells=cells)
            found.append((ORDER.index(verdict.state), -verdict.history[-1].new_runs))
        if baseline >= 10 and not stays:
            assert [runs for _, runs in found] == [found[0][1]] * len(found)
        ranks = [rank for rank, _ in found]
        assert ranks == sorted(ranks), cells
        # What the counts allow is convicted.
        possible = can_convict(baseline, SETTINGS.last_look, SETTINGS, cells)
        assert (ranks[-1] == ORDER.index("regression")) == possible


# ------------------------------------------------------------------ the rate
EXACT = GateSettings(
    rate=0.2, screen=0.5, min_effect=0.001, tau=0, looks=(3, 4), weights=(0.4, 0.6), detect=0.05
)


@settings(max_examples=8, deadline=None)
@given(
    # One of 126 ways is enough for one, two, or three tests and more.
    st.sampled_from([0.009, 0.017, 0.2]),
    st.lists(
        st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5), st.sampled_from([1000] * 9 + [200])),
        min_size=9,
        max_size=9,
    ),
)
def test_choosing_who_is_on_trial_keeps_the_rate(
    rate: float,
    drawn: list[tuple[float, float, int]],
) -> None:
    """Of all ways to call 4 of 9 runs new, at most ``rate`` alarm at the last look, whether the
    figure, its companion, failures, or as many of these as the rate suffices for, can convict."""
    pool = [
        ProcessRun(math.exp(a), n, "s", int(n * max(0, a) / 2), math.exp(b)) for a, b, n in drawn
    ]
    last = replace(EXACT, first_runs=4, looks=(4,), weights=(1.0,), rate=rate)
    alarms = ways = 0
    for chosen in combinations(range(9), 4):
        old = [run for i, run in enumerate(pool) if i not in chosen]
        cell = CellGate(old, P99, last, 1)
        for i in chosen:
            cell.add(pool[i])
        alarms += cell.p <= last.rate
        ways += 1
    assert alarms / ways <= last.rate


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([0.005, 0.009, 0.05]),
    st.lists(
        st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5), st.integers(0, 50)),
        min_size=16,
        max_size=16,
    ),
)
def test_pairs_hold_the_rate_wherever_they_drift(
    rate: float, drawn: list[tuple[float, float, int]]
) -> None:
    """Of all ways to call one run of each of 8 pairs new, at most ``rate`` alarm: with wild pairs
    set aside, with a companion and failures, and where pairs have nothing in common."""
    pool = [
        ProcessRun(math.exp(a + i // 2), 1000, "s", failed, math.exp(b - i // 2))
        for i, (a, b, failed) in enumerate(drawn)
    ]
    pool[0] = replace(pool[0], value=10 * pool[0].value)
    paired = replace(EXACT, first_runs=8, looks=(8,), weights=(1.0,), rate=rate, paired=True)
    alarms = 0
    for way in range(2**8):
        new = [pool[2 * i + (way >> i & 1)] for i in range(8)]
        old = [pool[2 * i + 1 - (way >> i & 1)] for i in range(8)]
        cell = CellGate(old, P99, paired, 1)
        for run in new:
            cell.add(run)
        alarms += cell.p <= rate
    assert alarms / 2**8 <= rate
