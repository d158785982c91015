"""Bounds on latency that tests assert: what passes, what fails and says why, what is refused."""

from __future__ import annotations

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import BadInput, BoundMissed, BoundUndecided, RefusedFigure
from pytest_hwqueue.data.metrics.latency import summarise_latency
from pytest_hwqueue.data.records.bounds import parse_bound
from pytest_hwqueue.data.records.cell import Cell, Metrics, RunRecord
from tests.answers.session.test_tables import waited

CELL = Cell(
    name="mine", device="cpu", streams=1, scheduler="native", dispatch="eager",
    sync_mode="per_iteration", size=None,
)  # fmt: skip


def record(samples_ns: list[int] | None, stopped: str = "1000 iterations") -> RunRecord:
    latency = None if samples_ns is None else summarise_latency(samples_ns)
    tags = {} if samples_ns is None else {"small": summarise_latency([n // 10 for n in samples_ns])}
    return RunRecord(
        cell=CELL, cell_id=CELL.id, nodeid="test.py::test", status="ok", started="", duration_s=1.0,
        stopped=stopped, metrics=Metrics(latency=latency, tags=tags), seed=0, command="",
    )  # fmt: skip


# 10.000 ms to 10.999 ms.
STEADY = random.Random(0).sample(range(10_000_000, 11_000_000, 1000), 1000)
WIDE = [1_000_000 * (1 + i % 100) for i in range(1000)]


@pytest.mark.parametrize("bound", ["12 ms", "12ms", "12000us", " 12000 µs ", "12000μs", ".012s"])
def test_what_is_below_its_bound_passes_in_every_unit(bound: str) -> None:
    assert parse_bound(bound).ns == pytest.approx(12e6)
    for each in (record(STEADY), record(STEADY).for_test()):
        each.assert_p50(bound)
        each.assert_p95(bound)
        each.assert_p99(bound)
        each.assert_p99("1.2 ms", tag="small")
    record([4_999_999] * 1000).assert_p99("5 ms")
    record([0] * 1000).assert_p99("1 ns")


@pytest.mark.parametrize(
    ("samples", "percentile", "bound", "tag", "said"),
    [
        (STEADY, "p99", "9 ms", None, "P99 of mine[cpu-s1-native-eager] is 11.0 ms [11.0, 11.0] "
         "(n = 1000), not below 9 ms"),
        (STEADY, "p50", "1 ms", "small", "P50 of small in mine[cpu-s1-native-eager] is 1.05 ms"),
        (WIDE, "p50", "50 ms", None, "interval contains the bound, so it could go either way"),
        # The bound itself is not below.
        ([5_000_000] * 1000, "p99", "5 ms", None, "not below 5 ms"),
    ],
)  # fmt: skip
def test_what_is_not_fails_with_its_figure_interval_and_samples(
    samples: list[int], percentile: str, bound: str, tag: str | None, said: str
) -> None:
    with pytest.raises(BoundMissed, match=re.escape(said)) as raised:
        getattr(record(samples), f"assert_{percentile}")(bound, tag=tag)
    assert isinstance(raised.value, AssertionError)
    assert ("chance" in str(raised.value)) == ("chance" in said)


@pytest.mark.parametrize(
    ("samples", "bound", "said"),
    [
        (
            WIDE,
            "51 ms",
            "(n = 1000), below 51 ms; the 95% interval contains the bound, so it could",
        ),
        # P99 of 400 samples is printed without an upper end.
        (
            [*STEADY[:400], 13_000_000],
            "12 ms",
            "below 12 ms; it has no interval: has 401 samples, as good as 366",
        ),
    ],
)
def test_what_chance_lets_pass_warns(samples: list[int], bound: str, said: str) -> None:
    measured = record(samples)
    check = measured.assert_p50 if samples is WIDE else measured.assert_p99
    with pytest.warns(BoundUndecided, match=re.escape(said)) as warned:
        check(bound)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    # No sample came near this bound.
    record(STEADY[:400]).assert_p99("12 ms")


def test_a_missed_tail_says_that_the_cpu_was_contended() -> None:
    said = "the CPU was contended (20.0 % of its time waiting, thread hwq-stream-3): do not trust"
    contended = record(STEADY).model_copy(update={"counters": waited(0.2)})
    with pytest.raises(BoundMissed, match=re.escape(said)):
        contended.assert_p99("1 ms")
    # A median is no tail; and what passes on a contended CPU passes on a quiet one.
    with pytest.raises(BoundMissed) as missed:
        contended.assert_p50("1 ms")
    assert "contended" not in str(missed.value)
    contended.assert_p99("12 ms")


@pytest.mark.parametrize(
    ("stopped", "remedy"),
    [
        ("20 iterations", "measure more: raise --hwq-samples"),
        ("time cap of 20 s", "its time cap of 20 s ended it: raise --hwq-max-time"),
    ],
)
def test_a_refused_percentile_fails_and_says_how_to_get_it(stopped: str, remedy: str) -> None:
    plain = record(STEADY[:20], stopped)
    few = plain.for_test()
    reason = "has 20 samples; 1000 independent ones suffice"
    said = re.escape(f"P99 of mine[cpu-s1-native-eager] is refused: {reason}; {remedy}")
    for each in (plain, few):
        each.assert_p50("12 ms")
        with pytest.raises(RefusedFigure, match=said) as raised:
            each.assert_p99("12 ms")
        assert str(raised.value).count("is refused") == 1
    # Metrics of a test's record refuse by name, and are stored as any other's.
    with pytest.raises(RefusedFigure, match="P99 of small in mine"):
        assert few.metrics.tags["small"].p99 < 12.0
    with pytest.raises(RefusedFigure, match=r"P99.9 of mine\["):
        assert few.metrics.latency.p999 < 12.0  # type: ignore[union-attr]
    assert plain.metrics.latency is not None
    assert plain.metrics.latency.p99.refused == reason
    assert RunRecord.model_validate_json(few.model_dump_json()) == few


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(RefusedFigure, match="has no latency: nothing was measured"):
        record(None).assert_p99("12 ms")
    with pytest.raises(ValueError, match="no latency of tag 'large'; its tags: small"):
        record(STEADY).assert_p99("12 ms", tag="large")


@pytest.mark.parametrize(
    "bound",
    ["12", "", "ms", "12 m", "12 MS", "-1 ms", "0 ms", "1e3 ms", "nan s", "1.2.3 ms", "< 12 ms", 12,
     12.0, None, "9" * 400 + " s"],
)  # fmt: skip
def test_a_bad_bound_is_refused_with_what_is_valid(bound: str) -> None:
    with pytest.raises(BadInput, match=r'unit \(ns, us, µs, ms or s\), such as "12 ms"'):
        record(STEADY).assert_p99(bound)


@given(st.text(max_size=8))
def test_any_text_is_a_finite_bound_or_refused(text: str) -> None:
    try:
        found = parse_bound(text)
    except BadInput:
        return
    assert 0 < found.ns < math.inf
