"""The model against the measured H200: every row is near, or says that it is not."""

from __future__ import annotations

import pytest

from .calibration import CalibrationRow, calibration


@pytest.fixture(scope="module")
def rows() -> list[CalibrationRow]:
    return list(calibration())


def test_every_figure_has_a_row(rows: list[CalibrationRow]) -> None:
    names = [row.what for row in rows]
    assert len(set(names)) == len(names)
    for part in ("launch of a small kernel", "a graph per stream", "ready to start", "convoy",
                 "sleeps", "matrix product", "a Python thread per stream"):  # fmt: skip
        assert any(part in name for name in names), part


def test_few_rows_are_off(rows: list[CalibrationRow]) -> None:
    off = [row.what for row in rows if row.verdict.startswith("off")]
    assert len(off) <= 1, off


@pytest.mark.parametrize(
    ("figure", "tolerance"),
    [
        ("launch of a small kernel", 0.01),
        ("event record", 0.01),
        ("from ready to start, on 1 streams", 0.01),
        ("convoy, tiny kernel of equal priority", 0.1),
        ("matrix product of 8192, bf16", 0.1),
    ],
)
def test_what_the_profile_was_made_from_comes_back(
    rows: list[CalibrationRow], figure: str, tolerance: float
) -> None:
    row = next(row for row in rows if row.what == figure)
    assert row.ratio == pytest.approx(1, abs=tolerance)
