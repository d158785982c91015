"""Set operations on time spans: union, intersection, difference, length."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Span = tuple[int, int]
"""From (included) to (excluded), in ns of one clock."""


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans, sorted and disjoint; empty spans are dropped."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> int:
    """Return the total length of disjoint spans, in ns."""
    return sum(end - start for start, end in spans)


def within(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """Return the part of sorted, disjoint spans that lies between two times."""
    first = bisect_right(spans, start, key=_end)
    last = bisect_left(spans, end, key=_start)
    return [(max(start, low), min(end, high)) for low, high in spans[first:last]]


def intersection(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the intersection of two sorted, disjoint sets of spans."""
    return [part for start, end in spans for part in within(others, start, end)]


def difference(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the first set of spans without the second; both sorted and disjoint."""
    left: list[Span] = []
    for start, end in spans:
        at = start
        for low, high in within(others, start, end):
            if at < low:
                left.append((at, low))
            at = high
        if at < end:
            left.append((at, end))
    return left


def last(spans: Sequence[Span], wanted_ns: int) -> list[Span]:
    """Return the last so many ns of sorted, disjoint spans."""
    taken: list[Span] = []
    for start, end in reversed(spans):
        if wanted_ns <= 0:
            break
        taken.append((max(start, end - wanted_ns), end))
        wanted_ns -= end - start
    return taken[::-1]


def _start(span: Span) -> int:
    return span[0]


def _end(span: Span) -> int:
    return span[1]
