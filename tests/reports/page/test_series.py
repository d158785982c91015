"""Curves hold samples and nothing else, however few of them are drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.reports.page import series

SAMPLES = st.lists(st.integers(0, 10**10), min_size=1, max_size=2000)


@given(SAMPLES, st.integers(1, 100))
def test_samples_in_order_keep_the_extremes(samples: list[int], runs: int) -> None:
    drawn = series.in_order(samples, runs)
    assert [samples[at] for at in drawn["at"]] == drawn["ns"]
    assert drawn["at"] == sorted(set(drawn["at"]))
    assert (min(drawn["ns"]), max(drawn["ns"])) == (min(samples), max(samples))
    assert drawn["n"] == len(samples)


@given(SAMPLES, st.integers(0, 50))
def test_a_survivals_points_are_shares_of_the_samples(samples: list[int], failed: int) -> None:
    drawn = series.survival(samples, failed)
    n = len(samples) + failed
    ordered = sorted(samples)
    for ns, share in zip(drawn["ns"], drawn["share"], strict=True):
        rank = n - round(share * n)
        assert ordered[rank] == ns
    assert drawn["share"] == sorted(drawn["share"], reverse=True)
    assert drawn["ns"][-1] == ordered[-1]
    assert drawn["share"][-1] == (1 + failed) / n


@given(SAMPLES)
def test_a_sparkline_stays_in_its_box(samples: list[int]) -> None:
    points = [each.split() for each in series.spark(samples)[1:].split("L")]
    assert len(points) <= 100
    assert all(0 <= float(x) <= 120 and 0 <= float(y) <= 28 for x, y in points)


def test_no_samples_have_no_sparkline() -> None:
    assert series.spark([]) == ""
