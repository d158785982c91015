"""Session effects: what a baseline shows of them, what is stated where it cannot, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.sessions import with_session_effect
from pytest_hwqueue.gate.suite_gate import SuiteGate
from pytest_hwqueue.gate.verdict import P99, GateSettings

SETTINGS = GateSettings()
CELLS = 60


def suite(
    seed: int, sessions: int, effect: float, *, common: bool = False, sd: float = 0.03
) -> tuple[dict[str, list[ProcessRun]], dict[str, list[ProcessRun]]]:
    """Ten old runs of so many sessions and 15 new ones of another, of each of 60 cells."""
    rng = np.random.default_rng(seed)
    shifts = effect * rng.standard_normal((1 if common else CELLS, sessions + 1))
    of_run = [i * sessions // 10 for i in range(10)] + [sessions] * 15
    logs = np.broadcast_to(shifts, (CELLS, sessions + 1))[:, of_run]
    values = np.exp(logs + sd * rng.standard_normal((CELLS, 25)))
    runs = {
        f"c{i}": [ProcessRun(float(v), 1000, f"s{j}") for v, j in zip(row, of_run, strict=True)]
        for i, row in enumerate(values)
    }
    return {key: own[:10] for key, own in runs.items()}, {
        key: own[10:] for key, own in runs.items()
    }


def allowed(old: Mapping[str, Sequence[ProcessRun]], settings: GateSettings = SETTINGS) -> float:
    found = with_session_effect(old, dict.fromkeys(old, P99), settings)
    return float(np.median([each.tau for each in found.values()]))


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("effect", [0.01, 0.04])
def test_four_sessions_show_an_upper_bound_of_what_they_differ_by(
    effect: float, common: bool
) -> None:
    found = [allowed(suite(seed, 5, effect, common=common)[0]) for seed in range(100)]
    assert sum(tau >= effect for tau in found) >= 80
    assert np.median(found) < (2.5 if common else 1.7) * effect


def test_sessions_that_do_not_differ_cost_little() -> None:
    assert np.median([allowed(suite(seed, 5, 0.0)[0]) for seed in range(50)]) < 0.012


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_with_fewer_sessions_the_stated_effect_applies(sessions: int) -> None:
    assert allowed(suite(0, sessions, 0.05)[0]) == SETTINGS.session_effect


def test_one_run_a_session_shows_at_most_the_stated_effect_of_a_cell() -> None:
    assert allowed(suite(0, 10, 0.0)[0]) == pytest.approx(SETTINGS.session_effect, rel=0.1)
    assert allowed(suite(0, 10, 0.0, sd=0.001)[0]) == SETTINGS.tau


def test_wild_runs_and_wild_cells_are_not_every_cells_noise() -> None:
    old, _ = suite(0, 5, 0.01)
    plain = allowed(old)
    for key in list(old)[:5]:
        old[key][0] = replace(old[key][0], value=10.0)
    for key in list(old)[5:10]:
        old[key] = [
            replace(run, value=run.value ** (1 + 9 * (i % 2))) for i, run in enumerate(old[key])
        ]
    assert allowed(old) == pytest.approx(plain, rel=0.2)


def test_a_time_per_iteration_that_differs_more_counts() -> None:
    old, _ = suite(0, 5, 0.0)
    other, _ = suite(1, 5, 0.05)
    both = {
        key: [replace(a, iteration_ns=1e6 * b.value) for a, b in zip(runs, other[key], strict=True)]
        for key, runs in old.items()
    }
    assert allowed(both) == pytest.approx(allowed(other))
    assert allowed(old) < 0.5 * allowed(other)


@pytest.mark.parametrize(
    "settings",
    [
        GateSettings.of_options(tau=0.01),
        GateSettings.of_options(tau=0.0),
        GateSettings(tau=0.0),
        GateSettings(paired=True),
    ],
)
def test_who_vouches_or_interleaves_has_no_other_session_effect(settings: GateSettings) -> None:
    for sessions in (1, 5):
        assert allowed(suite(0, sessions, 0.05)[0], settings) == settings.tau


def judged(
    old: dict[str, list[ProcessRun]], new: dict[str, list[ProcessRun]], slower: float = 1.0
) -> SuiteGate:
    gate = SuiteGate(SETTINGS, old)
    for key, runs in new.items():
        for run in runs:
            gate.add(key, replace(run, value=slower * run.value if key == "c0" else run.value))
    return gate


@pytest.mark.parametrize("sessions", [1, 5, 10])
@pytest.mark.parametrize("common", [False, True])
def test_a_session_effect_of_2_percent_fails_no_suite(sessions: int, common: bool) -> None:
    for seed in range(8):
        verdicts = judged(*suite(seed, sessions, 0.02, common=common)).verdicts()
        assert all(each.state != "regression" for each in verdicts.values())


@pytest.mark.parametrize("sessions", [1, 2, 5, 10])
@pytest.mark.parametrize("slower", [1.3, 2.0, 100.0])
def test_what_no_session_explains_is_a_regression(sessions: int, slower: float) -> None:
    verdict = judged(*suite(3, sessions, 0.0), slower).verdicts()["c0"]
    assert (verdict.state, verdict.history[-1].new_runs) == ("regression", 8)


def test_one_session_says_what_it_cannot_know() -> None:
    old, new = suite(0, 1, 0.0, sd=0.001)
    words = "the baseline is of 1 session: differences below 10.9 % may be the session's"
    gate = judged(old, new, 1.1)
    assert gate.verdicts()["c0"].assumes == words
    assert words in gate.verdicts()["c0"].line
    assert gate.verdicts()["c0"].state == "inconclusive"
    assert judged(old, new, 1.12).verdicts()["c0"].state == "regression"
    assert judged(*suite(0, 5, 0.0)).verdicts()["c0"].assumes == ""
    assert math.isclose(allowed(old), SETTINGS.session_effect)
