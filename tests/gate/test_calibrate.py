"""Calibration: known answers, coverage of the intervals, drift alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_hwqueue.gate.calibrate import calibrate, detectable_effect, drift_alarm
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.verdict import GateSettings

SETTINGS = GateSettings()


def runs_of(logs: list[list[float]]) -> list[ProcessRun]:
    return [
        ProcessRun(math.exp(log), 1000, f"s{session}")
        for session, values in enumerate(logs)
        for log in values
    ]


def simulated(
    rng: np.random.Generator, sizes: list[int], run_sd: float, session_sd: float
) -> list[ProcessRun]:
    return runs_of(
        [
            list(session_sd * rng.standard_normal() + run_sd * rng.standard_normal(size))
            for size in sizes
        ]
    )


def test_balanced_analysis_of_variance() -> None:
    """Two sessions of two: mean squares 0.0004 between (means differ by 0.02) and 0.0002 within."""
    cell = calibrate({"a": runs_of([[0.0, 0.02], [0.02, 0.04]])}, SETTINGS).cells["a"]
    assert cell.run_sd == pytest.approx(math.sqrt(0.0002))
    assert cell.session_sd == pytest.approx(math.sqrt((0.0004 - 0.0002) / 2))
    assert (cell.runs, cell.sessions) == (4, 2)
    total = math.sqrt(0.0002 + 0.0001)
    used = GateSettings(tau=0.01)
    assert cell.detectable == pytest.approx(detectable_effect(total, 4, used, 1))


def test_unbalanced_analysis_of_variance() -> None:
    """Sizes 1, 2, 3 and means 0, 0.03, 0.06: the grand mean is 0.04, the mean square between
    (0.0016 + 2 * 0.0001 + 3 * 0.0004) / 2 = 0.0015, within (0.0002 + 0.0008) / 3, and the size
    that weighs sessions (6 - 14 / 6) / 2 = 11 / 6."""
    runs = runs_of([[0.0], [0.02, 0.04], [0.04, 0.06, 0.08]])
    cell = calibrate({"a": runs}, SETTINGS).cells["a"]
    assert cell.run_sd**2 == pytest.approx(0.001 / 3)
    assert cell.session_sd is not None
    assert cell.session_sd**2 == pytest.approx((0.0015 - 0.001 / 3) * 6 / 11)


def test_tau_is_rounded_up_and_not_below_the_floor() -> None:
    assert calibrate({"a": runs_of([[0.0, 0.02], [0.02, 0.04]])}, SETTINGS).tau == pytest.approx(
        0.01
    )
    assert calibrate({"a": runs_of([[0.0, 0.02], [0.021, 0.041]])}, SETTINGS).tau == pytest.approx(
        0.011
    )
    quiet = calibrate({"a": runs_of([[0.0, 0.02], [0.0, 0.02]])}, SETTINGS)
    assert quiet.tau == SETTINGS.floor
    assert quiet.cells["a"].session_sd == 0.0


def test_one_session_tells_nothing_of_sessions() -> None:
    calibration = calibrate({"a": runs_of([[0.0, 0.01, 0.02]])}, SETTINGS)
    cell = calibration.cells["a"]
    assert calibration.tau is None
    assert cell.session_sd is None
    assert cell.session_sd_interval is None
    assert "all 3 runs come from one session: use interleaved" in cell.warning


def test_few_sessions_are_warned_of() -> None:
    cell = calibrate({"a": runs_of([[0.0, 0.02], [0.02, 0.01]])}, SETTINGS).cells["a"]
    assert cell.warning == "2 sessions say little of how sessions differ: take 5 or more"


@pytest.mark.parametrize("sizes", [[4] * 6, [2, 2, 2, 2, 12, 12]])
@pytest.mark.parametrize("session_sd", [0.01, 0.03])
def test_estimates_and_intervals_hold_the_truth(sizes: list[int], session_sd: float) -> None:
    rng = np.random.default_rng(3)
    repeats, run_sd = 600, 0.02
    run_held = session_held = 0
    variances = []
    for _ in range(repeats):
        cell = calibrate({"a": simulated(rng, sizes, run_sd, session_sd)}, SETTINGS).cells["a"]
        low, high = cell.run_sd_interval
        run_held += low <= run_sd <= high
        assert cell.session_sd is not None
        assert cell.session_sd_interval is not None
        low, high = cell.session_sd_interval
        session_held += low <= session_sd <= high
        variances.append(cell.session_sd**2)
    # 95 % of 600 with a standard deviation of 5; Williams' interval is approximate.
    assert 550 <= run_held <= 588
    assert 550 <= session_held <= 592
    # Five degrees of freedom: the mean of 600 variances is within some 10 % of the truth, and
    # above it by what is cut off at nothing.
    assert 0.85 * session_sd**2 <= np.mean(variances) <= 1.35 * session_sd**2


def test_runs_needed_follow_the_noise() -> None:
    rng = np.random.default_rng(1)
    calibration = calibrate(
        {
            "quiet": simulated(rng, [4] * 10, 0.01, 0.0),
            "noisy": simulated(rng, [4] * 10, 0.15, 0.0),
        },
        SETTINGS,
    )
    assert list(calibration.cells) == ["noisy", "quiet"]
    assert calibration.cells["noisy"].runs_needed is None
    # For one of two cells 1 / C(2K, K) must be at most 0.75 * 1 % / 2, whatever the noise.
    assert calibration.cells["quiet"].runs_needed == 6


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_values_are_refused(bad: float) -> None:
    runs = [ProcessRun(1.0, 1000, "a"), ProcessRun(bad, 1000, "a"), ProcessRun(1.0, 1000, "b")]
    with pytest.raises(ValueError, match="cell: every run's value must be finite and above 0"):
        calibrate({"cell": runs}, SETTINGS)


def test_one_run_a_session_is_refused() -> None:
    with pytest.raises(ValueError, match="cell: needs a session of two runs"):
        calibrate({"cell": runs_of([[0.0], [0.1], [0.2]])}, SETTINGS)


def test_drift_alarm() -> None:
    climbing = runs_of([[0.01 * i, 0.01 * i] for i in range(5)])
    assert "correlate by 0.70: use interleaved confirmation" in drift_alarm(climbing)
    assert drift_alarm(climbing[:9]) == ""
    alternating = runs_of([[0.01, -0.01] for _ in range(5)])
    assert drift_alarm(alternating) == ""
    assert drift_alarm(runs_of([[0.0, 0.0]] * 6)) == ""
    assert "all 10 runs come from one session" in drift_alarm(runs_of([[0.0] * 10]))
