"""Gate settings: every wrong field is named."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_hwqueue.gate.verdict import GateSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": 0}, "rate must be above 0 and below 1, is 0"),
        ({"rate": 1.0}, "rate must be above 0"),
        ({"rate": float("nan")}, "rate must be"),
        ({"rate": 0.3}, r"screen must be at least rate \(0.3\), is 0.2"),
        ({"warn": -1}, "warn must be"),
        ({"screen": 2}, "screen must be"),
        ({"min_effect": 5, "detect": 10}, "detect must be"),
        ({"min_effect": -0.1}, "min_effect must be above 0"),
        ({"floor": 0}, "floor must be"),
        ({"suite_shift": 0}, "suite_shift must be"),
        ({"tau": -0.01}, "tau must be 0 or more"),
        ({"power": 0.5}, "power must be above 0.5"),
        ({"first_runs": 1}, "first_runs must be 2 or more, is 1"),
        ({"first_runs": 5}, r"looks must be ascending numbers of runs from first_runs \(5\)"),
        ({"pairs": 1}, "pairs must be 2 or more"),
        ({"looks": (4, 4, 8)}, "looks must be ascending"),
        ({"looks": (), "weights": ()}, "looks must be"),
        ({"looks": (4, 8)}, r"weights must be as many as looks \(2\)"),
        ({"weights": (0, 0.5, 0.6)}, "weights must be .* 1 in all"),
        ({"weights": (0.5, 0.5, 0)}, "weights must be .* above 0 at the last look"),
        ({"weights": (-0.5, 0.5, 1)}, "weights must be 0 or more each"),
    ],
)
def test_wrong_fields_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"GateSettings.{message}"):
        GateSettings(**wrong)


def test_standard_settings_are_valid() -> None:
    assert GateSettings().last_look == 15
