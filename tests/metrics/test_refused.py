"""Refused percentiles: null in JSON, and whatever compares or computes with one says why."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_hwqueue.errors import RefusedFigure
from pytest_hwqueue.metrics.interference import LatencyRatioResult, latency_ratio
from pytest_hwqueue.metrics.latency import LatencySummary, summarise_latency
from pytest_hwqueue.metrics.numbers import Refused, guarded

PLAIN = summarise_latency([1_000_000 * i for i in range(1, 101)])
GUARDED = guarded(PLAIN, "mine[cpu]", "measure more")
TEXT = (
    "P99 of mine[cpu] is refused: needs at least 368 samples, has 100 (268 missing); measure more"
)


@pytest.mark.parametrize(
    "use",
    [
        lambda p99: p99 < 12.0,
        lambda p99: p99 > 12.0,
        lambda p99: sorted([12.0, p99]),
        lambda p99: p99 == 12.0,
        lambda p99: p99 != 12,
        lambda p99: p99 * 2,
        lambda p99: 2 - p99,
        lambda p99: 1 / p99,
        abs,
        lambda p99: round(p99, 1),
        lambda p99: f"{p99:.1f}",
        lambda p99: max(p99, 1.0),
        lambda p99: sum([p99]),
        lambda p99: pytest.approx(p99) == 1.0,
        float,
        int,
        operator.neg,
    ],
)
def test_whatever_uses_a_refused_percentile_fails_with_the_reason(use: Any) -> None:
    with pytest.raises(RefusedFigure) as raised:
        use(GUARDED.p99)
    assert str(raised.value) == TEXT
    assert isinstance(raised.value, AssertionError)


def test_it_is_false_and_shows_its_reason() -> None:
    assert not GUARDED.p99
    assert f"{GUARDED.p99}" == str(GUARDED.p99) == f"refused ({TEXT})"
    assert "P99.9 of mine[cpu]" in str(GUARDED.p999)


def test_given_figures_stay_what_they_are() -> None:
    assert (GUARDED.p50, GUARDED.p95, GUARDED.intervals) == (PLAIN.p50, PLAIN.p95, PLAIN.intervals)
    enough = summarise_latency(range(4000))
    assert guarded(enough, "", "") == enough


def test_json_keeps_null_and_is_read_as_none() -> None:
    adapter = TypeAdapter(LatencySummary)
    assert adapter.dump_json(GUARDED) == adapter.dump_json(PLAIN)
    assert adapter.dump_python(GUARDED) == adapter.dump_python(PLAIN)
    assert adapter.validate_json(adapter.dump_json(GUARDED)) == PLAIN
    ratio = latency_ratio([1] * 10, [2] * 10, "")
    both = TypeAdapter(LatencyRatioResult)
    assert both.dump_json(guarded(ratio, "", "")) == both.dump_json(ratio)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_refuse_too(again: Any) -> None:
    other = again(GUARDED)
    assert other == GUARDED
    assert isinstance(other.p99, Refused)
    with pytest.raises(RefusedFigure, match="368"):
        assert other.p99 < 1


def test_it_differs_from_none_and_from_other_refusals() -> None:
    assert GUARDED != PLAIN
    assert GUARDED.p99 != GUARDED.p999
    assert len({GUARDED.p99, GUARDED.p999, copy.copy(GUARDED.p99)}) == 2
