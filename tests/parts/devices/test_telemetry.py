"""Telemetry: when the log reads, and which latency samples it tags as throttled."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.records.telemetry import (
    HostSample,
    Telemetry,
    TelemetrySample,
    ThrottledSpan,
)
from pytest_hwqueue.parts.devices.telemetry import (
    TelemetryLog,
    TelemetryReader,
    Unavailable,
    throttled_spans,
)


class Scripted(TelemetryReader):
    """A reader that always reads the same."""

    def __init__(self) -> None:
        super().__init__("scripted")
        self._missing["power_w"] = "Not Supported"

    def read(self) -> TelemetrySample:
        return sample("power_cap")

    def close(self) -> None:
        pytest.fail("the log does not own its reader")


def sample(*reasons: str, **counters: int) -> TelemetrySample:
    return TelemetrySample(
        0, None, None, None, None, throttle_reasons=reasons, violation_counters=counters
    )


def test_log_reads_at_most_once_an_interval_unless_forced() -> None:
    now = 0
    log = TelemetryLog(Scripted(), interval_s=0.25, clock_ns=lambda: now)
    polls = [(0, False, True), (0, False, False), (249_999_999, False, False),
             (0, True, True), (249_999_999, False, False), (1, False, True)]  # fmt: skip
    for index, (later_ns, force, reads) in enumerate(polls):
        now += later_ns
        assert log.poll(index, force=force) is reads
    with pytest.raises(ValueError, match="comes before"):
        log.poll(4, force=True)
    telemetry = log.finish()
    spans = (ThrottledSpan(0, 5, ("power_cap",)),)
    assert telemetry == Telemetry(
        "scripted", (sample("power_cap"),) * 3, {"power_w": "Not Supported"}, spans, (0, 3, 5)
    )
    assert telemetry.throttled_samples == 5
    assert json.loads(json.dumps(dataclasses.asdict(telemetry)))["read_before"] == [0, 3, 5]
    log = TelemetryLog(Unavailable("no driver"))
    assert not log.poll(0, force=True)
    assert log.finish() == Telemetry("none", missing={"telemetry": "no driver"})


@pytest.mark.parametrize(
    ("samples", "spans"),
    [
        ([HostSample(0, None, None, None)] * 3, []),
        # Counters that begin, end or restart between readings prove nothing.
        ([sample(), sample(thermal=5), sample()], []),
        ([sample(thermal=5), sample(thermal=0), sample(thermal=0)], []),
        ([sample(thermal=1), sample(thermal=1), sample(thermal=2)], [(10, 20, "thermal")]),
    ],
)
def test_spans_of_three_readings(
    samples: list[TelemetrySample | HostSample], spans: list[tuple[int, int, str]]
) -> None:
    expected = tuple(ThrottledSpan(first, end, (reason,)) for first, end, reason in spans)
    assert throttled_spans([0, 10, 20], samples) == expected


REASONS = st.frozensets(st.sampled_from(["power_cap", "thermal", "sync_boost"]), max_size=2)


@given(st.lists(st.tuples(st.integers(0, 3), REASONS, st.integers(0, 2)), max_size=12))
def test_each_sample_is_tagged_by_the_readings_around_it(
    readings: list[tuple[int, frozenset[str], int]],
) -> None:
    positions = list(itertools.accumulate(step for step, _, _ in readings))
    totals = itertools.accumulate(grown for _, _, grown in readings)
    samples = [
        sample(*sorted(reasons), power_cap=total)
        for (_, reasons, _), total in zip(readings, totals, strict=True)
    ]
    truth: dict[int, set[str]] = {}
    for (first, (_, before, _)), (end, (_, after, grown)) in itertools.pairwise(
        zip(positions, readings, strict=True)
    ):
        here = {*before, *after, *(["power_cap"] if grown else [])}
        truth.update({each: here for each in range(first, end) if here})
    spans = throttled_spans(positions, samples)
    assert truth == {
        each: set(span.reasons)
        for span in spans
        for each in range(span.first_sample, span.end_sample)
    }
    # Spans are ordered, do not overlap, and none could be joined with its neighbour.
    for one, other in itertools.pairwise(spans):
        assert one.end_sample <= other.first_sample
        assert (one.end_sample, one.reasons) != (other.first_sample, other.reasons)
