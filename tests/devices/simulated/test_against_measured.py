"""The simulated H200 against co-locations that one H200 measured."""

from __future__ import annotations

import pytest
import torch

from .against_measured import PAGE, Comparison, Verdict, compare, markdown


@pytest.fixture(scope="module")
def alone() -> Comparison:
    precision = torch.get_float32_matmul_precision()
    found = compare(["solo"])
    # The model sets for its process that products may use TF32.
    torch.set_float32_matmul_precision(precision)
    return found


def test_a_model_alone_is_predicted_under_each_scheduler(alone: Comparison) -> None:
    rows = {(row.case, row.figure): row for row in alone.rows}
    assert rows["native", "P50"].fitted == "cold_factor"
    for case in ("mps", "mps-priority", "threads-stream-priority", "xsched:level=1,threshold=4"):
        row = rows[case, "P50"]
        assert not row.fitted
        assert row.near, row
    assert not any(verdict.flipped for verdict in alone.verdicts)
    assert "solo xsched:level=3" in alone.not_modelled


def test_the_table_tells_fitted_rows_and_those_that_are_off(alone: Comparison) -> None:
    text = markdown(alone)
    fitted = sum(bool(row.fitted) for row in alone.rows)
    assert f"{len(alone.rows)} rows, {fitted} of them fitted" in text
    assert text.count("fitted: ") == fitted
    assert text.count("**off**") == sum(not row.near for row in alone.rows)


def test_met_against_missed_is_a_flip_and_undecided_is_none() -> None:
    def flipped(measured: str, simulated: str) -> bool:
        return Verdict("s", "native", "high.p99 < 10 ms", measured, simulated).flipped

    assert flipped("met", "missed")
    assert flipped("missed", "met")
    assert not flipped("met", "met")
    assert not flipped("undecided", "met")


@pytest.mark.slow
def test_the_page_has_what_the_tool_says() -> None:
    found = compare()
    assert markdown(found) in PAGE.read_text(encoding="utf-8")
    assert not [verdict for verdict in found.verdicts if verdict.flipped]
