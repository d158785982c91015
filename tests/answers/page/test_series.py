"""Curves hold samples and nothing else, however few of them are drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.page.charts import in_order, spark
from pytest_hwqueue.data.document.charts import survival

SAMPLES = st.lists(st.integers(0, 10**10), min_size=1, max_size=2000)


@given(SAMPLES, st.integers(1, 100))
def test_samples_in_order_keep_the_extremes(samples: list[int], runs: int) -> None:
    drawn = in_order([samples] * runs)
    assert len(drawn) == runs
    for kept_at, ns in drawn:
        at = list(range(len(samples))) if kept_at is None else kept_at
        assert [samples[each] for each in at] == ns
        assert at == sorted(set(at))
        assert (min(ns), max(ns)) == (min(samples), max(samples))


@given(SAMPLES, st.integers(0, 50))
def test_a_survivals_points_are_shares_of_the_samples(samples: list[int], failed: int) -> None:
    drawn = survival(samples, failed)
    n = len(samples) + failed
    ordered = sorted(samples)
    assert drawn["n"] == n
    for ns, as_long in zip(drawn["ns"], drawn["as_long"], strict=True):
        assert ordered[n - as_long] == ns
    assert drawn["as_long"] == sorted(set(drawn["as_long"]), reverse=True)
    assert (drawn["ns"][-1], drawn["as_long"][-1]) == (ordered[-1], 1 + failed)


@given(SAMPLES)
def test_a_sparkline_stays_in_its_box(samples: list[int]) -> None:
    points = [each.split() for each in spark(samples)[1:].split("L")]
    assert len(points) <= 100
    assert all(0 <= float(x) <= 120 and 0 <= float(y) <= 28 for x, y in points)


def test_no_samples_have_no_sparkline() -> None:
    assert spark([]) == ""
