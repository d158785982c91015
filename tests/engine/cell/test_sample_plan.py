"""How many iterations and windows of a cell are measured, planned from what one takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.interference import latency_ratio
from pytest_hwqueue.engine.cell.sample_plan import FEW, USUAL, SamplePlan

MS = 1_000_000
ONLY = SamplePlan(only_run=True)
ONE_OF_SEVERAL = SamplePlan()


@pytest.mark.parametrize(
    ("launches", "window_ns", "only", "several"),
    [
        # Of few launches: as many windows as give an interval if they are alike in each.
        (4, MS // 2, 1000, 250),
        (4, MS, 1000, 250),
        # Of many: they are stored.
        (128, MS, 157, 50),
        # What takes long: as many as fit into 1 s.
        (8, 10 * MS, 100, 100),
        (32, 42 * MS, 23, 23),
        # P99 needs 368 samples, however long they take.
        (4, 100 * MS, 110, 110),
        (128, 100 * MS, 10, 10),
        (1000, 10_000 * MS, 1, 1),
    ],
)
def test_windows(launches: int, window_ns: int, only: int, several: int) -> None:
    assert ONLY.windows(launches, window_ns) == only
    assert ONE_OF_SEVERAL.windows(launches, window_ns) == several


@given(
    launches=st.integers(1, 10_000), window_ns=st.integers(0, 10**11), asked=st.integers(1, 10**6),
    only=st.booleans(),
)  # fmt: skip
def test_windows_have_what_was_asked_for(
    launches: int, window_ns: int, asked: int, only: bool
) -> None:
    plan = SamplePlan(asked, only_run=only)
    windows = plan.windows(launches, window_ns)
    assert windows * launches >= asked
    assert windows <= max(50, -(-asked // launches))
    exactly = replace(plan, exact=True).windows(launches, window_ns)
    assert exactly == -(-asked // launches)


@given(launches=st.integers(1, 10_000), window_ns=st.integers(1, 10**11))
def test_an_only_run_has_no_fewer_windows_and_all_have_a_p99(launches: int, window_ns: int) -> None:
    only, several = (plan.windows(launches, window_ns) for plan in (ONLY, ONE_OF_SEVERAL))
    assert only >= several >= 1
    assert several * launches >= FEW


def test_the_fewest_samples_have_a_p99_and_a_ratio_of_two() -> None:
    figures = latency_ratio(range(1, FEW + 1), range(1, FEW + 1), "")
    assert figures.p99.value == 1
    assert 2 * ONLY.half.least >= FEW


def test_a_models_windows_are_alike() -> None:
    assert ONLY.windows(64, MS, modelled=True) == 20
    assert ONLY.windows(4, MS, modelled=True) == USUAL // 4


def test_iterations_are_more_where_they_take_little() -> None:
    assert ONLY.iterations(1000, MS // 10) == 4000
    assert ONLY.iterations(1000, MS // 2) == 2000
    assert ONLY.iterations(1000, 10 * MS) == 1000
    # Iterations that have several samples each are fewer.
    assert ONLY.iterations(250, MS // 10) == 1000
    assert ONE_OF_SEVERAL.iterations(1000, MS // 10) == 1000
    assert SamplePlan(300, only_run=True).iterations(300, MS // 10) == 300
    assert ONLY.iterations(1000, MS // 10, modelled=True) == 1000


def test_a_reference_has_half_of_what_was_asked_for_before_and_after() -> None:
    assert SamplePlan(300, exact=True).half == SamplePlan(150, exact=True)
    assert ONLY.half == SamplePlan(FEW // 2)
    assert SamplePlan(1).half.asked == 1
