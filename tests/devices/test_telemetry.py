"""Telemetry: when the log reads, and which latency samples it tags as throttled."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.telemetry import (
    HostSample,
    Telemetry,
    TelemetryLog,
    TelemetrySample,
    ThrottledSpan,
    Unavailable,
    throttled_spans,
)


class Scripted:
    """A reader of prepared samples."""

    missing: dict[str, str] = {"power_w": "Not Supported"}  # noqa: RUF012

    def __init__(self, samples: Sequence[TelemetrySample]) -> None:
        self.samples = list(samples)

    def read(self) -> TelemetrySample:
        return self.samples.pop(0)

    def describe(self) -> str:
        return "scripted"

    def close(self) -> None:
        pytest.fail("the log does not own its reader")


def sample(*reasons: str, **counters: int) -> TelemetrySample:
    return TelemetrySample(
        0, None, None, None, None, throttle_reasons=reasons, violation_counters=counters
    )


def test_log_reads_at_most_once_an_interval_unless_forced() -> None:
    now = 0
    log = TelemetryLog(Scripted([sample()] * 4), interval_s=0.25, clock_ns=lambda: now)
    assert log.poll(0)
    assert not log.poll(1)
    now += 249_999_999
    assert not log.poll(2)
    assert log.poll(3, force=True)
    now += 249_999_999
    assert not log.poll(4)
    now += 1
    assert log.poll(5)
    with pytest.raises(ValueError, match="comes before"):
        log.poll(4, force=True)
    telemetry = log.finish()
    assert telemetry.read_before == (0, 3, 5)
    assert telemetry.source == "scripted"
    assert telemetry.missing == {"power_w": "Not Supported"}
    assert json.loads(json.dumps(dataclasses.asdict(telemetry)))["read_before"] == [0, 3, 5]


def test_log_without_a_reader_keeps_the_reason() -> None:
    log = TelemetryLog(Unavailable("no driver"))
    assert not log.poll(0, force=True)
    assert log.finish() == Telemetry("none", missing={"telemetry": "no driver"})


@pytest.mark.parametrize(
    ("samples", "spans"),
    [
        ([sample(), sample(), sample()], []),
        ([sample("power_cap"), sample(), sample()], [(0, 10, "power_cap")]),
        ([sample(), sample("power_cap"), sample()], [(0, 20, "power_cap")]),
        ([sample(), sample(), sample("sync_boost")], [(10, 20, "sync_boost")]),
        ([sample(thermal=1), sample(thermal=1), sample(thermal=2)], [(10, 20, "thermal")]),
        # Counters that begin, end or restart between readings prove nothing.
        ([sample(), sample(thermal=5), sample()], []),
        ([sample(thermal=5), sample(thermal=0), sample(thermal=0)], []),
        (
            [sample("power_cap"), sample(), sample("thermal")],
            [(0, 10, "power_cap"), (10, 20, "thermal")],
        ),
    ],
)
def test_spans_of_three_readings(
    samples: list[TelemetrySample], spans: list[tuple[int, int, str]]
) -> None:
    expected = tuple(ThrottledSpan(first, end, (reason,)) for first, end, reason in spans)
    assert throttled_spans([0, 10, 20], samples) == expected


def test_host_samples_are_never_throttled() -> None:
    assert throttled_spans([0, 9], [HostSample(0, None, None, None)] * 2) == ()


READINGS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.frozensets(st.sampled_from(["power_cap", "thermal", "sync_boost"]), max_size=2),
        st.integers(0, 2),
    ),
    max_size=12,
)


@given(READINGS)
def test_each_sample_is_tagged_by_the_readings_around_it(
    readings: list[tuple[int, frozenset[str], int]],
) -> None:
    positions: list[int] = []
    samples: list[TelemetrySample] = []
    total = 0
    for step, reasons, grown in readings:
        positions.append(step + (positions[-1] if positions else 0))
        total += grown
        samples.append(sample(*sorted(reasons), power_cap=total))
    truth: dict[int, set[str]] = {}
    for index in range(len(samples) - 1):
        reasons_here = {*samples[index].throttle_reasons, *samples[index + 1].throttle_reasons}
        if readings[index + 1][2]:
            reasons_here.add("power_cap")
        for latency_sample in range(positions[index], positions[index + 1]):
            truth[latency_sample] = reasons_here
    spans = throttled_spans(positions, samples)
    tagged = {
        each: set(span.reasons)
        for span in spans
        for each in range(span.first_sample, span.end_sample)
    }
    assert tagged == {each: reasons for each, reasons in truth.items() if reasons}
    # Spans are ordered, do not overlap, and none could be joined with its neighbour.
    for before, after in itertools.pairwise(spans):
        assert before.end_sample <= after.first_sample
        assert (before.end_sample, before.reasons) != (after.first_sample, after.reasons)


def test_importing_is_light() -> None:
    check = (
        "import sys; import pytest_hwqueue.devices.telemetry, pytest_hwqueue.devices.lease; "
        "print({'torch', 'numpy', 'pydantic', 'pynvml', 'amdsmi', 'psutil'} & {*sys.modules})"
    )
    root = Path(__file__).parents[2]
    imported = subprocess.check_output([sys.executable, "-c", check], cwd=root, text=True)
    assert imported.strip() == "set()"
