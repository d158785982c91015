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

from pytest_hwqueue.gate.cell_gate import CellGate, can_be_convicted
from pytest_hwqueue.gate.conclude import conclude
from pytest_hwqueue.gate.quantity import ITERATION_TIME, P95, P99, Quantity, fall_back
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.verdict import Verdict

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
def test_a_quiet_figure_is_judged_alone() -> None:
    cell = cell_of(runs(10), runs(8, slower=1.1, seed=1))
    assert (cell.main_on_trial, cell.companion_on_trial, cell.tests) == (True, False, 1)
    verdict = conclude(cell, True)
    assert (verdict.reason, verdict.by) == ("worse", "p99")
    assert verdict.companion is not None
    assert not verdict.companion.on_trial
    assert "time per iteration" not in verdict.sentence


@pytest.mark.parametrize("slower", [1.0, 1.2, 3.0, 100.0])
def test_a_shift_is_not_taken_for_noise(slower: float) -> None:
    new = [replace(run, iteration_ns=1e6) for run in runs(8, slower=slower, seed=1)]
    assert not cell_of(runs(10), new).companion_on_trial


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


def test_the_range_that_tries_the_time_per_iteration_is_blind_to_labels() -> None:
    pooled = [
        replace(run, iteration_ns=factor * 1e6)
        for run, factor in zip(runs(12), [*[1.3] * 3, *[1.0] * 9], strict=True)
    ]
    for place in range(0, 12, 2):
        old, new = [*pooled[:place], *pooled[place + 2 :]], pooled[place : place + 2]
        assert cell_of(old, new).companion_on_trial


def test_a_noisy_figure_shares_its_rate_with_the_time_per_iteration() -> None:
    cell = cell_of(runs(10, noise=0.5), runs(15, slower=1.2, noise=0.5, seed=1))
    assert (cell.main_on_trial, cell.companion_on_trial, cell.tests) == (True, True, 2)
    verdict = conclude(cell, cell.p <= SETTINGS.rate / CELLS)
    assert (verdict.state, verdict.reason) == ("regression", "slower-iterations")
    assert verdict.by == ITERATION_TIME.name
    look = verdict.history[-1]
    assert look.p_companion <= SETTINGS.rate / CELLS < look.p_worse


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


# ------------------------------------------------------------------ the rate
EXACT = GateSettings(
    rate=0.2, screen=0.5, min_effect=0.001, tau=0, looks=(3, 4), weights=(0.4, 0.6), detect=0.05
)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5), st.sampled_from([1000] * 9 + [200])),
        min_size=9,
        max_size=9,
    )
)
def test_choosing_who_is_on_trial_keeps_the_rate(
    drawn: list[tuple[float, float, int]],
) -> None:
    """Of all ways to call 4 of 9 runs new, at most ``rate`` alarm at the last look, whether the
    figure, its companion or both can convict."""
    pool = [ProcessRun(math.exp(a), n, "s", iteration_ns=math.exp(b)) for a, b, n in drawn]
    last = replace(EXACT, first_runs=4, looks=(4,), weights=(1.0,))
    alarms = ways = 0
    for chosen in combinations(range(9), 4):
        old = [run for i, run in enumerate(pool) if i not in chosen]
        cell = CellGate(old, P99, last, 1)
        for i in chosen:
            cell.add(pool[i])
        alarms += cell.p <= last.rate
        ways += 1
    assert alarms / ways <= last.rate
