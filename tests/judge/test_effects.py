"""Least effects of cells' own: what baselines let the gate promise, and what keeps them from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.versions.sides import by_pairs
from pytest_hwqueue.judge.calibrate import detectable_effect, least_effect
from pytest_hwqueue.judge.effects import LEAST_EFFECT, cell_settings, limit_of, of_pairs
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.sessions import LEAST_TAU
from pytest_hwqueue.judge.suite_gate import SuiteGate
from pytest_hwqueue.judge.verdict import P99, THROUGHPUT, GateSettings, Quantity
from tools.gate_robust import judged

AUTO = GateSettings.of_options(min_effect=None)
Runs = dict[str, list[ProcessRun]]


def stored(
    sd: float, sessions: int = 5, each: int = 2, effect: float = 0.0, seed: int = 0, cells: int = 16
) -> Runs:
    """Return baselines whose runs and sessions differ by so much."""
    rng = np.random.default_rng(seed)
    found: Runs = {}
    for i in range(cells):
        logs = effect * rng.standard_normal((sessions, 1)) + sd * rng.standard_normal(
            (sessions, each)
        )
        found[f"c{i}"] = [
            ProcessRun(math.exp(log), 1000, f"s{j}") for j in range(sessions) for log in logs[j]
        ]
    return found


def new_runs(sd: float, rise: float, count: int = 15, seed: int = 1) -> list[ProcessRun]:
    logs = math.log1p(rise) + sd * np.random.default_rng(seed).standard_normal(count)
    return [ProcessRun(math.exp(log), 1000, "new") for log in logs]


def own(old: Runs, settings: GateSettings = AUTO, **more: Sequence[str]) -> list[GateSettings]:
    quantities = dict.fromkeys(old, P99)
    return [each.main for each in cell_settings(old, quantities, settings, 16, **more).values()]


def test_2_percent_is_found_in_quiet_cells_and_only_if_asked_for() -> None:
    old = stored(0.001)
    new = {key: new_runs(0.001, 0.02 * (key == "c3"), seed=i) for i, key in enumerate(old)}
    assert judged(old, new, GateSettings())["c3"].state == "pass"
    verdicts = judged(old, new, AUTO)
    assert [key for key, each in verdicts.items() if each.state == "regression"] == ["c3"]
    assert verdicts["c3"].detectable == pytest.approx(0.017, abs=0.002)
    assert all(each.limit == "" for each in verdicts.values())


@pytest.mark.parametrize("effect", [0.0, 0.0025, 0.005, 0.01])
def test_sessions_that_differ_fail_no_unchanged_suite(effect: float) -> None:
    """At a tau of 0, 0, 2, 15 and 18 of them fail; docs/evidence/gate.md has more."""
    for seed in range(20):
        old = stored(0.003, 6, 2, effect, seed)
        moved = {key: math.log(runs[-1].value) for key, runs in old.items()}
        new = {key: new_runs(0.003, math.expm1(log), seed=seed) for key, log in moved.items()}
        known = {key: runs[:-2] for key, runs in old.items()}
        assert {each.state for each in judged(known, new, AUTO).values()} <= {"pass", "improvement"}


@given(
    st.floats(0.005, 0.2),
    st.integers(3, 30),
    st.integers(1, 200),
    st.sampled_from([0.0, LEAST_TAU, 0.005, 0.02]),
)
def test_a_least_effect_costs_nothing_that_a_smaller_one_would_find(
    sd: float, runs: int, cells: int, tau: float
) -> None:
    settings = replace(AUTO, tau=tau)
    least = least_effect(sd, runs, settings, cells)
    reach = [
        detectable_effect(sd, runs, replace(settings, min_effect=effect), cells)
        for effect in (min(least, 9.9), 1e-9)
    ]
    assert least > 9.9 or reach[0] == pytest.approx(reach[1])


def test_least_effects_lie_between_1_percent_and_the_default() -> None:
    quiet, middling, noisy, few = (
        own(runs)[0].min_effect
        for runs in (stored(0.001), stored(0.006), stored(0.05), stored(0.001, 2, 1))
    )
    assert LEAST_EFFECT <= quiet < middling < noisy == few == GateSettings().min_effect
    # Runs that agree altogether have no less than 1 %, in pairs, where no session differs.
    pairs = by_pairs(AUTO, 20)
    assert of_pairs([1.0] * 20, [1.0] * 20, pairs, 1).min_effect == LEAST_EFFECT
    # One wild run is no noise.
    wild = stored(0.001)
    wild["c0"][0] = replace(wild["c0"][0], value=5.0)
    assert own(wild)[0].min_effect == pytest.approx(quiet, abs=0.003)


def test_a_cells_figures_have_least_effects_of_their_own() -> None:
    old = {
        key: [
            replace(run, iteration_ns=1e6 * noisy.value)
            for run, noisy in zip(runs, other, strict=True)
        ]
        for (key, runs), other in zip(stored(0.001).items(), stored(0.05).values(), strict=True)
    }
    found = cell_settings(old, dict.fromkeys(old, P99), AUTO, 16)["c0"]
    assert found.main.min_effect < 0.02 < found.companion.min_effect == 0.05


@given(
    st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=9, max_size=9),
    st.lists(st.booleans(), min_size=9, max_size=9),
)
def test_a_least_effect_of_pairs_does_not_know_which_run_is_new(
    pairs: list[tuple[float, float]], flips: list[bool]
) -> None:
    flipped = [pair[::-1] if flip else pair for pair, flip in zip(pairs, flips, strict=True)]
    found = [
        of_pairs([old for old, _ in each], [new for _, new in each], by_pairs(AUTO, 9), 1)
        for each in (pairs, flipped)
    ]
    assert found[0] == found[1]


def test_four_sessions_may_show_less_than_the_stated_tau() -> None:
    quiet = stored(0.001, 5, 2)
    assert {each.tau for each in own(quiet)} == {LEAST_TAU}
    assert {each.tau for each in own(quiet, GateSettings())} == {GateSettings().tau}
    assert {each.tau for each in own(stored(0.001, 3, 3))} == {GateSettings().session_effect}
    vouched = GateSettings.of_options(tau=0.004, min_effect=None)
    assert {each.tau for each in own(quiet, vouched)} == {0.004}
    assert min(each.tau for each in own(stored(0.001, 5, 2, effect=0.01))) > 0.005


def test_a_device_that_is_only_a_model_has_no_session_effect() -> None:
    old = stored(0.003, 1, 10)
    for settings in (GateSettings(), AUTO):
        assert {each.tau for each in own(old, settings)} == {settings.session_effect}
        alike = own(old, settings, sessionless=list(old)[:1])
        assert (alike[0].tau, alike[1].tau) == (0.0, settings.session_effect)
    new = {key: new_runs(0.003, 0.07 * (key in ("c0", "c1"))) for key in old}
    gate = SuiteGate(GateSettings(), old, sessionless=["c0"])
    for key, runs in new.items():
        for run in runs:
            gate.add(key, run)
    verdicts = gate.verdicts()
    assert (verdicts["c0"].state, verdicts["c0"].assumes) == ("regression", "")
    assert verdicts["c1"].state == "inconclusive"
    assert "the baseline is of 1 session" in verdicts["c1"].assumes


@pytest.mark.parametrize(
    ("sd", "sessions", "quantity", "tau", "limit"),
    [
        (0.005, 1, P99, 0.02,
         "cannot detect +2.0 %: 1 session does not show how sessions differ, 4 do"),
        (0.005, 3, P99, 0.02,
         "cannot detect +2.0 %: 3 sessions do not show how sessions differ, 4 do"),
        (0.005, 5, P99, 0.0061, "cannot detect +2.0 %: sessions may differ by 0.61 % (tau)"),
        (0.015, 5, THROUGHPUT, 0.0025, "cannot detect -2.0 %: sd 1.5 %, K=10, T=15"),
        (0.005, 5, P99, 0.0025, ""),
    ],
)  # fmt: skip
def test_what_keeps_a_cell_from_2_percent_is_said(
    sd: float, sessions: int, quantity: Quantity, tau: float, limit: str
) -> None:
    runs = [ProcessRun(1.0, 1000, f"s{i % sessions}") for i in range(10)]
    settings = replace(AUTO, tau=tau, min_effect=LEAST_EFFECT)
    found = detectable_effect(sd, 10, settings, 16)
    assert limit_of(found, sd, runs, quantity, settings, 16) == limit
    assert limit_of(None, sd, runs, quantity, settings, 16) == ""
    assert limit_of(found, sd, runs, quantity, replace(settings, own_effects=False), 16) == ""


def test_a_quiet_cell_whose_own_sessions_differ_is_judged_as_usual() -> None:
    """The median cell's sessions say nothing of it."""
    old = stored(0.001, 5, 4)
    old["c3"] = stored(0.001, 5, 4, effect=0.003)["c3"]
    found = own(old)
    assert replace(found[3], own_effects=False) == own(old, GateSettings())[3]
    assert {each.tau for each in (*found[:3], *found[4:])} == {LEAST_TAU}
