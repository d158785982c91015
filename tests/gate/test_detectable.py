"""Minimum detectable effects: the published table, and the runs needed for a goal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.gate.calibrate import (
    can_convict,
    detectable_effect,
    look_to_convict,
    runs_needed,
    runs_to_convict,
)
from pytest_hwqueue.gate.verdict import GateSettings

SETTINGS = GateSettings()
BASELINES = (1, 2, 3, 5, 10, 15, 20)


@pytest.mark.parametrize(
    ("sd", "table", "for_10", "for_20"),
    [
        (0.01, "9.9 6.3 6.1 5.9 5.7 5.6 5.6", 9, 9),
        (0.02, "21 11 9.0 7.3 6.4 6.3 6.2", 9, 9),
        (0.03, "33 17 14 11 8.3 7.3 6.8", 10, 9),
        (0.05, "60 29 24 18 14 12 11", 22, 9),
        (0.10, "156 67 53 40 29 25 23", None, 49),
    ],
)
def test_table(sd: float, table: str, for_10: int | None, for_20: int) -> None:
    """To the printed digits, in percent, for 100 cells and the standard settings."""
    for runs, printed in zip(BASELINES, table.split(), strict=True):
        percent = 100 * detectable_effect(sd, runs, SETTINGS, 100)
        digits = len(printed.partition(".")[2])
        assert f"{percent:.{digits}f}" == printed
    assert runs_needed(sd, 0.10, SETTINGS, 100) == for_10
    assert runs_needed(sd, 0.20, SETTINGS, 100) == for_20


@given(st.floats(0.005, 0.2), st.integers(3, 30), st.integers(1, 2000))
def test_more_runs_and_fewer_cells_detect_less(sd: float, runs: int, cells: int) -> None:
    effect = detectable_effect(sd, runs, SETTINGS, cells)
    assert detectable_effect(sd, runs + 1, SETTINGS, cells) <= effect
    assert detectable_effect(sd * 1.1, runs, SETTINGS, cells) >= effect
    assert detectable_effect(sd, runs, SETTINGS, cells + 1) >= effect
    assert effect >= SETTINGS.min_effect


@given(st.floats(0.005, 0.1), st.floats(0.06, 0.5), st.integers(1, 500))
def test_runs_needed_is_the_least(sd: float, goal: float, cells: int) -> None:
    def enough(runs: int) -> bool:
        effect = detectable_effect(sd, runs, SETTINGS, cells, last_look=runs)
        return can_convict(runs, runs, SETTINGS, cells) and effect <= goal

    expected = next((runs for runs in range(5, 61) if enough(runs)), None)
    assert runs_needed(sd, goal, SETTINGS, cells) == expected


@pytest.mark.parametrize(("runs", "most_cells"), [(5, 116), (6, 406), (10, 24515)])
def test_how_many_cells_a_baseline_can_serve(runs: int, most_cells: int) -> None:
    assert can_convict(runs, 15, SETTINGS, most_cells)
    assert not can_convict(runs, 15, SETTINGS, most_cells + 1)


def test_early_look_serves_109_cells() -> None:
    early = replace(SETTINGS, weights=(0.0, 0.75, 0.25))
    assert can_convict(10, 8, early, 109)
    assert not can_convict(10, 8, early, 110)


def test_what_it_takes_to_convict() -> None:
    assert not can_convict(2, 15, SETTINGS, 1)
    assert can_convict(3, 15, SETTINGS, 10**6)
    assert runs_to_convict(SETTINGS, 117) == 6
    assert look_to_convict(5, SETTINGS, 116) == 15
    assert look_to_convict(5, SETTINGS, 117) == 16
    assert look_to_convict(5, SETTINGS, 10**9) is None
