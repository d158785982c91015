"""Calibration and detectable effects: known answers, the published table, coverage, alarms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.judge.calibrate import (
    CellCalibration,
    calibrate,
    can_convict,
    detectable_effect,
    drift_alarm,
    look_to_convict,
    runs_needed,
    runs_to_convict,
)
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.verdict import GateSettings

SETTINGS = GateSettings()


def runs_of(logs: list[list[float]]) -> list[ProcessRun]:
    numbered = [(log, f"s{i}") for i, values in enumerate(logs) for log in values]
    return [ProcessRun(math.exp(log), 1000, session) for log, session in numbered]


def simulated(
    rng: np.random.Generator, sizes: list[int], run_sd: float, session_sd: float
) -> list[ProcessRun]:
    own = [(session_sd * rng.standard_normal(), rng.standard_normal(size)) for size in sizes]
    return runs_of([list(session + run_sd * runs) for session, runs in own])


def cell_of(runs: list[ProcessRun]) -> CellCalibration:
    return calibrate({"a": runs}, SETTINGS).cells["a"]


def test_analysis_of_variance() -> None:
    """Sizes 1, 2, 3 and means 0, 0.03, 0.06: the grand mean is 0.04, the mean square between
    (0.0016 + 2 * 0.0001 + 3 * 0.0004) / 2 = 0.0015, within (0.0002 + 0.0008) / 3, and the size
    that weighs sessions (6 - 14 / 6) / 2 = 11 / 6."""
    runs = runs_of([[0.0], [0.02, 0.04], [0.04, 0.06, 0.08]])
    calibration = calibrate({"a": runs}, SETTINGS)
    cell = calibration.cells["a"]
    run, session = 0.001 / 3, (0.0015 - 0.001 / 3) * 6 / 11
    assert (cell.run_sd, cell.session_sd) == pytest.approx((math.sqrt(run), math.sqrt(session)))
    assert (cell.runs, cell.sessions) == (6, 3)
    assert calibration.tau == pytest.approx(0.026)
    used = replace(SETTINGS, tau=0.026)
    expected = detectable_effect(math.sqrt(run + session), 6, used, 1)
    assert cell.detectable == pytest.approx(expected)


@pytest.mark.parametrize(
    ("second", "tau"),
    # Rounded up to 0.1 %, and not below the floor.
    [([0.02, 0.04], 0.01), ([0.021, 0.041], 0.011), ([0.0, 0.02], SETTINGS.floor)],
)
def test_tau_that_is_recommended(second: list[float], tau: float) -> None:
    found = calibrate({"a": runs_of([[0.0, 0.02], second])}, SETTINGS)
    assert found.tau == pytest.approx(tau)
    assert found.tau_is_floor == (tau == SETTINGS.floor)
    words = "2 sessions say little of how sessions differ: take 5 or more"
    assert found.cells["a"].warning == words


def test_one_session_tells_nothing_of_sessions() -> None:
    calibration = calibrate({"a": runs_of([[0.0, 0.01, 0.02]])}, SETTINGS)
    cell = calibration.cells["a"]
    assert (calibration.tau, cell.session_sd, cell.session_sd_interval) == (None, None, None)
    assert "all 3 runs come from one session: use interleaved" in cell.warning


@pytest.mark.parametrize("sizes", [[4] * 6, [2, 2, 2, 2, 12, 12]])
@pytest.mark.parametrize("session_sd", [0.01, 0.03])
def test_estimates_and_intervals_hold_the_truth(sizes: list[int], session_sd: float) -> None:
    rng = np.random.default_rng(3)
    repeats, run_sd = 600, 0.02
    run_held = session_held = 0
    variances = []
    for _ in range(repeats):
        cell = cell_of(simulated(rng, sizes, run_sd, session_sd))
        assert cell.session_sd is not None
        assert cell.session_sd_interval is not None
        run_held += cell.run_sd_interval[0] <= run_sd <= cell.run_sd_interval[1]
        session_held += cell.session_sd_interval[0] <= session_sd <= cell.session_sd_interval[1]
        variances.append(cell.session_sd**2)
    # 95 % of 600 with a standard deviation of 5; Williams' interval is approximate.
    assert 550 <= run_held <= 588
    assert 550 <= session_held <= 592
    # Five degrees of freedom: the mean of 600 variances is within some 10 % of the truth, and
    # above it by what is cut off at nothing.
    assert 0.85 * session_sd**2 <= np.mean(variances) <= 1.35 * session_sd**2


def test_runs_needed_follow_the_noise() -> None:
    rng = np.random.default_rng(1)
    sds = {"quiet": 0.01, "noisy": 0.15}
    made = {name: simulated(rng, [4] * 10, sd, 0.0) for name, sd in sds.items()}
    found = calibrate(made, SETTINGS).cells
    # For one of two cells 1 / C(2K, K) must be at most 1 % / 2, whatever the noise.
    needed = [(key, cell.runs_needed) for key, cell in found.items()]
    assert needed == [("noisy", None), ("quiet", 5)]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_cannot_be_calibrated_is_refused(bad: float) -> None:
    runs = [ProcessRun(1.0, 1000, "a"), ProcessRun(bad, 1000, "a"), ProcessRun(1.0, 1000, "b")]
    with pytest.raises(ValueError, match="a: every run's value must be finite and above 0"):
        cell_of(runs)
    with pytest.raises(ValueError, match="a: needs a session of two runs"):
        cell_of(runs_of([[0.0], [0.1], [0.2]]))


def test_drift_alarm() -> None:
    climbing = runs_of([[0.01 * i, 0.01 * i] for i in range(5)])
    assert "correlate by 0.70: use interleaved confirmation" in drift_alarm(climbing)
    assert "all 10 runs come from one session" in drift_alarm(runs_of([[0.0] * 10]))
    for quiet in (climbing[:9], runs_of([[0.01, -0.01]] * 5), runs_of([[0.0, 0.0]] * 6)):
        assert drift_alarm(quiet) == ""


@pytest.mark.parametrize(
    ("sd", "table", "for_10", "for_20"),
    [
        (0.01, "9.9 6.3 6.1 5.9 5.7 5.6 5.6", 8, 8),
        (0.02, "21 11 8.9 7.2 6.4 6.3 6.2", 8, 8),
        (0.03, "33 16 13 11 8.3 7.3 6.8", 9, 8),
        (0.05, "60 28 23 18 14 12 11", 22, 8),
        (0.10, "156 65 51 39 29 25 23", None, 49),
    ],
)
def test_published_table(sd: float, table: str, for_10: int | None, for_20: int) -> None:
    """To the printed digits, in percent, for 100 cells and the standard settings."""
    for runs, printed in zip((1, 2, 3, 5, 10, 15, 20), table.split(), strict=True):
        percent = 100 * detectable_effect(sd, runs, SETTINGS, 100)
        assert f"{percent:.{len(printed.partition('.')[2])}f}" == printed
    assert runs_needed(sd, 0.10, SETTINGS, 100) == for_10
    assert runs_needed(sd, 0.20, SETTINGS, 100) == for_20


@given(st.floats(0.005, 0.1), st.floats(0.06, 0.5), st.integers(1, 500))
def test_runs_needed_is_the_least(sd: float, goal: float, cells: int) -> None:
    def enough(runs: int) -> bool:
        effect = detectable_effect(sd, runs, SETTINGS, cells, last_look=runs)
        return can_convict(runs, runs, SETTINGS, cells) and effect <= goal

    expected = next((runs for runs in range(5, 61) if enough(runs)), None)
    assert runs_needed(sd, goal, SETTINGS, cells) == expected


def test_what_it_takes_to_convict() -> None:
    early = replace(SETTINGS, weights=(0.25, 0.5, 0.25))
    for runs, look, used, most_cells in (
        (5, 15, SETTINGS, 155), (6, 15, SETTINGS, 542), (10, 15, SETTINGS, 32687),
        (10, 8, early, 437),
    ):  # fmt: skip
        served = [can_convict(runs, look, used, cells) for cells in (most_cells, most_cells + 1)]
        assert served == [True, False]
    assert [can_convict(runs, 15, SETTINGS, 10**6) for runs in (2, 3)] == [False, True]
    assert runs_to_convict(SETTINGS, 156) == 6
    found = [look_to_convict(5, SETTINGS, cells) for cells in (155, 156, 10**9)]
    assert found == [15, 16, None]
