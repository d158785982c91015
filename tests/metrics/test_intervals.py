"""Interval arithmetic against sets of whole nanoseconds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.timeline import Span, difference, intersection, length, union, within

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda ends: (min(ends), max(ends)))
)


def moments(spans: list[Span]) -> set[int]:
    return {moment for start, end in spans for moment in range(start, end)}


def is_canonical(spans: list[Span]) -> bool:
    return all(start < end for start, end in spans) and all(
        first[1] < second[0] for first, second in pairwise(spans)
    )


@given(SPANS)
def test_union_is_the_same_time_in_spans_that_do_not_touch(spans: list[Span]) -> None:
    merged = union(spans)
    assert is_canonical(merged)
    assert moments(merged) == moments(spans)
    assert length(merged) == len(moments(spans))


@given(SPANS, SPANS)
def test_intersection_and_difference_part_the_first(first: list[Span], second: list[Span]) -> None:
    both = intersection(union(first), union(second))
    left = difference(union(first), union(second))
    assert moments(both) == moments(first) & moments(second)
    assert moments(left) == moments(first) - moments(second)
    assert length(both) + length(left) == length(union(first))


@given(SPANS, st.integers(0, 60), st.integers(0, 60))
def test_within_cuts(spans: list[Span], one: int, other: int) -> None:
    begin, end = sorted((one, other))
    assert moments(within(union(spans), begin, end)) == moments(spans) & set(range(begin, end))
