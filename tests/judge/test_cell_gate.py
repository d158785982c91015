"""One cell's judgement: what verdicts say, the rate by listing every relabelling, monotonicity."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.judge.calibrate import can_convict
from pytest_hwqueue.judge.cell_gate import CellGate, can_be_convicted
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.suite_gate import conclude
from pytest_hwqueue.judge.verdict import (
    ITERATION_TIME,
    P90,
    P95,
    P99,
    THROUGHPUT,
    GateSettings,
    Verdict,
    fall_back,
)
from tests.stored_texts import assert_as_stored

Runs = list[ProcessRun]
SETTINGS = GateSettings()
ONE_LOOK: dict[str, Any] = {"first_runs": 8, "looks": (8,), "weights": (1.0,)}
TWELVE_PAIRS = {**ONE_LOOK, "first_runs": 12, "looks": (12,), "paired": True, "cells": 1}
DEMOTED = {"quantity": replace(P95, demoted_from="P99")}
ORDER = ("pass", "inconclusive", "regression")


def of(*values: float, n: int = 1000, failed: int = 0, session: str = "new") -> Runs:
    return [ProcessRun(value, n, session or f"s{i}", failed) for i, value in enumerate(values)]


def new(count: int, slower: float = 1, sd: float = 0.02, seed: int = 0, **more: Any) -> Runs:
    rng = random.Random(seed)
    return of(*[slower * math.exp(sd * rng.gauss(0, 1)) for _ in range(count)], **more)


def old(count: int = 10, sd: float = 0.02, seed: int = 0, **more: Any) -> Runs:
    return new(count, 1, sd, seed, session="", **more)


def timed(
    count: int,
    slower: float = 1,
    *,
    sd: float = 0.02,
    n: int = 1000,
    seed: int = 0,
    stay: float = 1,
) -> Runs:
    """Runs whose figure has the given noise and is less slow by ``stay``; iterations have 2 %."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        value, time = slower / stay * math.exp(rng.gauss(0, sd)), slower * 1e6
        time *= math.exp(rng.gauss(0, 0.02))
        made.append(ProcessRun(value, n, "new" if seed else f"s{i}", iteration_ns=time))
    return made


def slower(runs: Runs, by: float) -> Runs:
    return [replace(run, value=run.value * by * (1 + i % 2 / 100)) for i, run in enumerate(runs)]


def with_times(runs: Runs, *times: float | None) -> Runs:
    each = times * len(runs) if len(times) == 1 else times
    return [replace(run, iteration_ns=time) for run, time in zip(runs, each, strict=True)]


def judged(
    baseline: Sequence[ProcessRun], fresh: Sequence[ProcessRun], *, quantity: Any = P99,
    cells: int = 100, **changed: Any,
) -> CellGate:  # fmt: skip
    cell = CellGate(baseline, quantity, replace(SETTINGS, **changed), cells)
    for run in fresh:
        cell.add(run)
    return cell


def verdict_of(baseline: Runs, fresh: Runs, **more: Any) -> Verdict:
    cell = judged(baseline, fresh, **more)
    return conclude(cell, cell.p <= cell.settings.rate / cell.cells)


WILD = [1e6 * run.value for run in new(10, sd=0.3, seed=5)]
FOUR, TEN = old(4), old(10)
SWINGING = of(*[math.exp(0.4), math.exp(-0.4)] * 4)
DRIFT = of(*[1.5**i * (1 + 0.01 * (i % 3)) for i in range(12)])
# By state and reason: the baseline, new runs, and settings.
VERDICTS: dict[str, dict[str, tuple[Runs, Runs, dict[str, Any]]]] = {
    "pass within-noise": {
        "unchanged": (TEN, of(1.0, 0.99, 5.0), {}),
        "a look of weight nothing only acquits": (TEN, new(2, 1.3) + new(2, 0.7), {"detect": 1.0}),
        "a wild baseline run": (old(9) + of(5.0), of(1.0, 0.99), {}),
        "the second run is wildly fast": (TEN, of(1.0, 0.1, 1.0, 0.99), {}),
        "hardly faster": (TEN, of(0.97, 0.96), {}),
        "4 % faster beyond any doubt": (old(sd=0.001), of(0.96, 0.96), {}),
        "a rise that did not last": (
            TEN, new(8, 1.3) + new(7, 0.75), {"detect": 1.0, "cells": 1000}),
        "noisy and plainly faster": (old(sd=0.25, seed=2), new(15, 0.5, sd=0.25, seed=3), {}),
        "noisy where less matters": (
            SWINGING, slower(SWINGING, 1.01), {"detect": 1.0}),
        "more runs of both are advised": (
            of(*[math.exp(0.08), math.exp(-0.08)] * 5), of(1.01, 1.01), {}),
        "a baseline of 2 can pass": (old(2), of(0.3, 0.3), {}),
        "numbers of samples differ": (TEN, of(1.0, 1.0, n=400), {}),
        "noisy throughput": (old(sd=0.06), of(1.0, 1.0), {"quantity": THROUGHPUT}),
        "30 pairs": (old(30), new(30, seed=1), {**TWELVE_PAIRS, "first_runs": 30, "looks": (30,)}),
        "throughput needs few": (TEN, of(1.0, 1.0, n=9), {"quantity": THROUGHPUT}),
        "failures as before": (old(failed=5), of(1.0, 1.0, failed=5), {}),
        "fewer failures": (old(failed=5), of(1.0, 1.0), {}),
        "iterations are much shorter": (timed(10), timed(8, 0.1, seed=1, stay=0.1), {}),
        "one run has no time per iteration": (timed(9) + of(1.0), timed(2, seed=1), {}),
        "a time per iteration has no companion": (
            timed(10), timed(2, seed=1), {"quantity": ITERATION_TIME}),
    },
    "regression worse": {
        "slower by 30 %": (TEN, new(15, 1.3, seed=1), {}),
        "one of 110 cells only at the last look": (TEN, new(15, 1.3, seed=1), {"cells": 110}),
        "5.1 % without spread": (of(*[1.0] * 10), of(*[1.051] * 15), {}),
        "sessions are alike": (TEN, new(8, 1.2), {**ONE_LOOK, "tau": 0}),
        "one wild new run": (TEN, new(7, 1.3, seed=1) + of(13.0), ONE_LOOK),
        "one wild baseline run": (old(9) + of(5.0), new(15, 1.2, seed=1), {}),
        "three convict by normal theory": (old(3), new(15, 1.3, seed=2), {}),
        "three convict by a figure, not by failures": (
            old(3, sd=0.1), new(15, 1.4, sd=0.1, seed=2, failed=500), {"cells": 6}),
        "four convict by normal theory": (FOUR, new(15, 1.3, seed=2), {}),
        "five convict among 155 cells": (old(5), new(15, 1.5, seed=2), {"cells": 155}),
        "a few failures take no part of a rate for one": (
            old(5, failed=1), new(15, 1.5, seed=2, failed=1), {}),
        "few samples are enough for P90": (old(n=29), new(15, 2, n=29), {"quantity": P90}),
        "less throughput": (TEN, new(15, 0.7), {"quantity": THROUGHPUT}),
        "failures halve the rate": (old(failed=2), new(8, 1.3, seed=1, failed=2), ONE_LOOK),
        "slower and failing": (TEN, new(15, 1.3, failed=100), {"cells": 1}),
        "pairs that drift": (DRIFT, slower(DRIFT, 1.2), TWELVE_PAIRS),
        "both figures are slower": (timed(10), timed(8, 1.3, seed=1), {}),
        "the figure alone is slower": (timed(10), with_times(timed(8, 3, seed=1), 1e6), {}),
    },
    "pass not-shown": {
        "4 %, as certain as can be": (old(sd=0.001), new(15, 1.04, sd=0.001), {}),
        "2 % that will not become 5 %": (old(sd=0.005), new(15, 1.02, sd=0.005, seed=1), {}),
        "4.9 % without spread": (of(*[1.0] * 10), of(*[1.049] * 15), {}),
        "the second run is wild": (TEN, of(1.0, 10.0) + new(2, seed=1) + new(4, seed=2), {}),
        "one bad run is one witness": (TEN, new(1, failed=100) + new(14, seed=3), {}),
        "noisy iterations": (with_times(TEN, *WILD), with_times(new(10, seed=1), *WILD[::-1]), {}),
    },
    "improvement better": {
        "faster": (TEN, of(0.7, 0.71), {}),
        "more throughput": (TEN, of(1.5, 1.5), {"quantity": THROUGHPUT}),
    },
    "inconclusive likely-worse": {
        "sessions may differ": (TEN, new(8, 1.2), {**ONE_LOOK, "tau": 0.1}),
        "a baseline of one session": (new(10), new(8, 1.2), {**ONE_LOOK, "tau": 0.05}),
        "likely": (old(sd=0.05), new(15, 1.08, sd=0.05, seed=4), {"cells": 10_000}),
        "two wild runs of eight are not isolated": (
            TEN, new(6, 1.3, seed=1) + of(100.0, 101.0), ONE_LOOK),
    },
    "inconclusive unstable": {
        "set-aside runs leave too few": (FOUR + of(9.0), new(15, seed=1), {}),
    },
    "inconclusive blind": {
        "22 % noise: runs could help": (old(sd=0.22, seed=2), new(15, sd=0.22, seed=3), {}),
        "33 % noise": (old(sd=0.33, seed=2), new(15, sd=0.33, seed=3), {}),
        "60 % noise: they could not": (old(sd=0.6, seed=2), new(15, sd=0.6, seed=3), {}),
        "a noisy figure names what sees more": (timed(10, sd=0.5), timed(15, sd=0.5, seed=1), {}),
    },
    "inconclusive runs-missing": {
        "one run": (TEN, of(1.0), {}),
        "more runs are needed": (TEN, new(6, 1.3), {}),
        "faster and failing": (TEN, of(0.5, 0.5, failed=100), {}),
    },
    "inconclusive baseline-too-small": {
        "a baseline of 1": (old(1), new(15, 3.0), {"cells": 1}),
        "a baseline of 2": (old(2), new(15, 3.0), {"cells": 1}),
        "five among 156 cells": (old(5), new(15, 1.5, seed=2), {"cells": 156}),
        "few pairs, one of them wild": (
            TEN[:8], of(*[1.3] * 7, 30.0), {**ONE_LOOK, "paired": True}),
    },
    "regression more-failures": {
        "many failures take all of it": (old(5, failed=1), new(15, seed=2, failed=100), {}),
        "more failures": (TEN, new(15, failed=3), {}),
    },
    "incomparable clock-too-coarse": {"no time passed": (TEN, of(1.0, 0.0), {})},
    "incomparable zero-figure": {"nothing was done": (TEN, of(0.0, 1.0), {"quantity": THROUGHPUT})},
    "incomparable not-a-number": {"a baseline run": (TEN + of(math.inf), of(1.0), {})},
    "inconclusive too-few-samples": {
        "too few samples": (old(n=100), new(15, 2.0, n=100), {}),
        "no slower": (timed(10, n=20), timed(2, n=20, seed=1), {}),
    },
    "inconclusive likely-more-failures": {
        "a baseline of 1": (of(1.0), of(*[1.0] * 15, failed=500), {}),
        "a baseline of 2": (old(2), new(15, failed=500), {"cells": 1}),
    },
    "regression slower-iterations": {
        "iterations alone are slower": (timed(10), timed(15, 1.5, seed=1, stay=1.5), {}),
        "iterations alone are slower by far": (timed(10), timed(15, 1000, seed=1, stay=1000), {}),
        "a noisy figure shares its rate": (
            timed(10, sd=0.5), timed(15, 1.2, sd=0.5, seed=1), {"cells": 40}),
        "3 samples in a run": (timed(10), timed(15, 150, n=3, seed=1), {}),
        "none in a run": (
            timed(10), [replace(run, value=math.nan) for run in timed(15, 150, n=0, seed=1)], {}),
    },
    "inconclusive demoted": {
        "a stand-in never passes": (timed(10, n=100), timed(2, n=100, seed=1), DEMOTED),
        "a stand-in alone never convicts": (old(n=100), new(15, 2, n=100, seed=1), DEMOTED),
        "a stand-in alone is worse": (
            timed(10, n=100), timed(15, n=100, seed=1, stay=0.5), DEMOTED),
    },
}  # fmt: skip
CASES = [(told, name, case) for told, cases in VERDICTS.items() for name, case in cases.items()]


@pytest.mark.parametrize(("told", "name", "case"), CASES)
def test_verdict(told: str, name: str, case: tuple[Runs, Runs, dict[str, Any]]) -> None:
    verdict = verdict_of(*case[:2], **case[2])
    assert f"{verdict.state} {verdict.reason}" == told, name


def test_verdicts_as_they_are_told() -> None:
    """Sentences, lines and the numbers of each look, to three digits."""
    texts = []
    for told, name, (baseline, fresh, more) in CASES:
        verdict = verdict_of(baseline, fresh, **more)
        texts += [f"# {told}: {name}", verdict.line, verdict.sentence]
        runs = f"{len(verdict.baseline)} and {len(verdict.new)} runs, by {verdict.by or 'nothing'}"
        main = verdict.main
        shown = (main.ratio, main.interval, main.sd, main.detectable) if main else [None] * 4
        whole, aside = (verdict.p, *shown), main.set_aside if main else ()
        numbers = map(repr, (runs, whole, *verdict.history, *aside, verdict.companion))
        texts += [re.sub(r"\d+\.\d+(e-\d+)?", lambda n: f"{float(n[0]):.3g}", each)
                  for each in numbers if each != "None"]  # fmt: skip
    assert_as_stored(__file__, "verdicts.txt", "\n".join(texts))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_impossible_figures_are_refused(bad: float) -> None:
    cell = judged(TEN, of(2.0, bad, 2.0, 2.0))
    assert (len(cell.new), cell.wanted, cell.p) == (2, 0, 1.0)
    assert str(bad) in conclude(cell, False).sentence


# ------------------------------------------------------------------ the rate
EXACT: dict[str, Any] = {"screen": 0.5, "min_effect": 0.001, "tau": 0, "cells": 1}
LAST = {**EXACT, "first_runs": 4, "looks": (4,), "weights": (1.0,), "detect": 0.05}
TWO_LOOKS = {**EXACT, "rate": 0.2, "looks": (3, 4), "weights": (0.4, 0.6)}


SMALL = st.floats(-0.5, 0.5)


def lists(size: int, *each: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(*each), min_size=size, max_size=size)


def alarms(runs: Runs, rate: float, size: int = 4, **used: Any) -> float:
    """Return the share of ways to call ``size`` runs new, one of them the last, that alarm."""
    found = []
    for chosen in combinations(range(len(runs)), size):
        others = [run for i, run in enumerate(runs) if i not in chosen]
        # Order within a look does not matter, so that at most the last run does.
        for last in chosen if len(used["looks"]) > 1 else chosen[:1]:
            fresh = [runs[i] for i in (*sorted(set(chosen) - {last}), last)]
            found.append(judged(others, fresh, rate=rate, **used).p <= rate)
    return sum(found) / len(found)


@settings(max_examples=6)
@given(lists(9, SMALL | st.sampled_from([0.0, 3.0]), st.sampled_from([0, 0, 90])))
def test_rate_holds_over_all_relabellings(drawn: list[tuple[float, int]]) -> None:
    """With two looks, with failures or without, whatever the runs are."""
    runs = [ProcessRun(math.exp(log), 1000, "s", failed) for log, failed in drawn]
    assert alarms(runs, **TWO_LOOKS) <= TWO_LOOKS["rate"]


def test_that_rate_can_be_reached() -> None:
    """The former test would also pass with a gate that never alarms."""
    baseline = [ProcessRun(math.exp(0.01 * i), 1000, "s") for i in range(5)]
    assert judged(baseline, of(2.0, 2.1, 2.2, 2.3), **TWO_LOOKS).p <= TWO_LOOKS["rate"]
    failing = judged(baseline, of(1.0, 1.0, 1.0, 1.0, failed=500), **TWO_LOOKS)
    assert failing.p_failures <= TWO_LOOKS["rate"]


@settings(max_examples=8)
@given(
    # One of 126 ways is enough for one, two, or three tests and more.
    st.sampled_from([0.009, 0.017, 0.2]),
    lists(9, SMALL, SMALL, st.sampled_from([1000] * 9 + [200])),
)
def test_choosing_who_is_on_trial_keeps_the_rate(
    rate: float, drawn: list[tuple[float, float, int]]
) -> None:
    """Whether the figure, its companion, failures, or as many of these as the rate suffices for,
    can convict."""
    pool = [ProcessRun(math.exp(a), n, "s", int(n * max(0, a) / 2), math.exp(b))
            for a, b, n in drawn]  # fmt: skip
    assert alarms(pool, rate, **LAST) <= rate


@settings(max_examples=10)
@given(st.sampled_from([0.005, 0.009, 0.05]), lists(16, SMALL, SMALL, st.integers(0, 50)))
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
    paired = {**LAST, **ONE_LOOK, "rate": rate, "paired": True}
    alarming = 0
    for way in range(2**8):
        sides = [[pool[2 * i + ((way >> i & 1) ^ side)] for i in range(8)] for side in (1, 0)]
        alarming += judged(*sides, **paired).p <= rate
    assert alarming / 2**8 <= rate


# ------------------------------------------------------------------ worse is never weaker
LOGS = st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=8)


@settings(max_examples=50)
@given(st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=12), LOGS, LOGS)
def test_a_pass_excludes_the_rise_that_matters(
    before: list[float], one: list[float], other: list[float]
) -> None:
    verdict = verdict_of(of(*map(math.exp, before)), of(*map(math.exp, one + other)))
    if verdict.state == "pass":
        assert verdict.main is not None
        assert verdict.main.upper < SETTINGS.detect


@given(st.integers(0, 2**32), st.sampled_from([0.3, 0.6]))
def test_a_cell_that_looks_worse_never_stops_as_blind(seed: int, sd: float) -> None:
    verdict = verdict_of(old(sd=sd, seed=seed), new(15, 2, sd=sd, seed=seed + 1))
    stopped = [look for look in verdict.history if look.decision == "blind"]
    assert all(look.p_t > SETTINGS.screen for look in stopped)


@given(LOGS, LOGS)
def test_order_within_a_look_does_not_matter_and_throughput_mirrors_latency(
    before: list[float], after: list[float]
) -> None:
    slow = judged(of(*map(math.exp, before)), of(*map(math.exp, after)), **ONE_LOOK)
    sides = [of(*[math.exp(-log) for log in logs[::-1]]) for logs in (before, after)]
    rate = judged(*sides, **ONE_LOOK, quantity=THROUGHPUT)
    assert rate.p == pytest.approx(slow.p, rel=1e-2)  # values may be rounded the other way
    assert rate.history[-1].p_t == pytest.approx(slow.history[-1].p_t, rel=1e-6)


def test_a_middle_slower_by_15_percent_is_found_whatever_the_range_of_the_runs() -> None:
    for seed in range(1, 40):
        found = verdict_of(timed(10), timed(15, 1.15, seed=seed, stay=1.15))
        assert found.reason == "slower-iterations", seed


def test_a_baseline_of_stand_ins_alone_cannot_convict() -> None:
    stand_in = DEMOTED["quantity"]
    assert not can_be_convicted(old(n=100), stand_in)
    assert can_be_convicted(timed(10, n=100), stand_in)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.05, 0.3]))
def test_worse_is_never_weaker(seed: int, noise: float) -> None:
    """From x 1.1 to x 1000, the runs ending by time: n falls as 1 / slowdown."""
    ranks = []
    for slower in (1.1, 1.5, 2, 3, 5, 10, 50, 150, 1000):
        n = max(1, min(1000, round(2000 / slower)))
        fresh = timed(15, slower, sd=noise, n=n, seed=seed + 1)
        found = verdict_of(timed(10, sd=noise, n=n), fresh, quantity=fall_back(P99, n) or P99)
        ranks.append(ORDER.index(found.state))
    assert ranks == sorted(ranks)
    assert ranks[-1] == ORDER.index("regression")


@pytest.mark.parametrize("failed", [0, 1])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize(
    "runs",
    [
        *(3, 4, 5, 10, 12),
        *(pytest.param(runs, marks=pytest.mark.slow) for runs in (6, 7, 8, 9, 11)),
    ],
)
def test_worse_is_never_weaker_however_few_runs(runs: int, stays: bool, failed: int) -> None:
    """Whether or not the latency judged gets slower too, among 1 to 500 cells."""
    baseline = timed(runs)
    baseline[0] = replace(baseline[0], failed=failed)
    for cells in (1, 5, 10, 40, 58, 59, 100, 109, 155, 156, 203, 204, 300, 406, 407, 542, 543):
        ranks, spent = [], set()
        for slower in (1.1, 1.12, 1.15, 1.18, 1.2, 1.22, 1.3, 2, 5, 50, 1000):
            fresh = timed(15, slower, seed=1, stay=slower if stays else 1)
            verdict = verdict_of(baseline, fresh, cells=cells)
            ranks.append(ORDER.index(verdict.state))
            spent.add(verdict.history[-1].new_runs)
        assert runs < 10 or stays or len(spent) == 1
        assert ranks == sorted(ranks), cells
        # What the counts allow is convicted.
        possible = can_convict(runs, SETTINGS.last_look, SETTINGS, cells)
        assert (ranks[-1] == ORDER.index("regression")) == possible


def test_only_the_first_judgement_calls_a_cell_improved() -> None:
    """One that was flagged has had more than one test by the time it is acquitted."""
    clear = CellGate(old(12), P99, SETTINGS, 1)
    doubtful = CellGate(old(12), P99, SETTINGS, 1)
    for run in new(4, 0.8):
        clear.add(run)
    for run in (*of(0.8, 1.1), *new(4, 0.75, seed=2)):
        doubtful.add(run)
    assert [look.decision for look in clear.history] == ["acquitted"]
    assert [look.decision for look in doubtful.history] == ["flagged", "acquitted"]
    assert doubtful.main is not None
    assert doubtful.main.difference.p_below(SETTINGS.tau) <= SETTINGS.rate
    assert (clear.improved, doubtful.improved) == (True, False)
