"""What an accelerator's trace says of requests: synthetic passes whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_hwqueue.data.metrics.attribution import Cause, Request
from pytest_hwqueue.data.metrics.cpu_events import OffCpu
from pytest_hwqueue.data.metrics.timeline import HostCall, Kernel, Timeline
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.data.records.noise import Causes
from pytest_hwqueue.data.records.telemetry import Telemetry, TelemetrySample, ThrottledSpan
from pytest_hwqueue.engine.causes.perf_events import Tracing
from pytest_hwqueue.engine.causes.perf_records import CpuTrace
from pytest_hwqueue.engine.causes.traced_cell import causes_of_pass
from pytest_hwqueue.engine.causes.traced_pass import Chunk, TracedPass
from pytest_hwqueue.parts.devices.clocks import ClockOffset, ClockPair
from pytest_hwqueue.parts.devices.protocol import Device

GPU = cast(Device, SimpleNamespace(kind="cuda", capabilities=KINDS["cuda"]))
MAIN = 41
COUNT = 400
PERIOD = 1_000_000
SLOW = frozenset(range(10, COUNT, 25))
CLOCKS = ClockPair(ClockOffset(0, 10**18, 80), ClockOffset(COUNT * PERIOD, 10**18, 90))


def traced(
    seen: Callable[[int, int], Sequence[HostCall | OffCpu]] = lambda number, start: (),
    *,
    late_ns: int = 0,
    telemetry: Telemetry | None = None,
) -> tuple[Causes, set[int]]:
    """A pass of requests with one kernel each, that of slow ones 0.2 ms late.

    ``seen`` gives what else there was in a slow one, from its number and start.
    """
    requests, kernels = [], []
    calls: list[HostCall] = []
    away: list[OffCpu] = []
    for number in range(COUNT):
        start = PERIOD * (number + 1)
        # No two requests are alike.
        extra = number * 7 % 100
        slow = number in SLOW
        launch = start + 2_000 + 200_000 * slow
        begin = launch + 5_000
        end = begin + 50_000 + extra
        calls.append(HostCall("cudaLaunchKernel", MAIN, launch - late_ns, launch + 4_000, number))
        kernels.append(
            Kernel(0, number, "gemm", None, launch + 4_000, begin, end, call=len(calls) - 1)
        )
        for one in seen(number, start) if slow else ():
            if isinstance(one, HostCall):
                calls.append(one)
            else:
                away.append(one)
        requests.append(Request(number, start, start, start, end + 1_000))
    timeline = Timeline(tuple(kernels), 1, None, calls=tuple(calls), clocks=CLOCKS)
    passed = TracedPass(Tracing("perf", (), None), MAIN, {})
    passed.requests = requests
    passed.waits = [(one.started_ns, one.finished_ns) for one in requests]
    whose = {number: number for number in range(COUNT)}
    passed.chunks = [Chunk(timeline, whose, PERIOD, requests[-1].finished_ns)]
    passed.trace = CpuTrace(0, requests[-1].finished_ns, tuple(away), (), 0)
    passed.telemetry = telemetry or Telemetry(source="none", missing={"telemetry": "no reader"})
    causes, attribution = causes_of_pass(GPU, passed)
    right = {one.request for one in attribution.tails["p95"].requests if one.cause is not None}
    return causes, right


def off(start: int, end: int) -> OffCpu:
    return OffCpu(MAIN, 0, 0, start, end, "preempted", start, 9, "stress-ng")


@pytest.mark.parametrize(("seen", "cause", "what"), [
    # Who launches is missed while the device has nothing to do,
    (lambda _, at: [off(at, at + 200_000)], "descheduled", "gave way to stress-ng"),
    # and not while a kernel runs; the launch itself came late, for no reason that was seen.
    (lambda _, at: [off(at + 210_000, at + 250_000)], "descheduled", None),
    (lambda number, at: [HostCall("cudaMalloc", MAIN, at, at + 200_000, number)],
     "allocation", "cudaMalloc"),
])  # fmt: skip
def test_what_delays_a_launch_while_the_device_is_idle_explains_it(
    seen: Callable[[int, int], Sequence[HostCall | OffCpu]], cause: Cause, what: str | None
) -> None:
    causes, explained = traced(seen)
    assert (causes.clock_offset_ns, causes.clock_uncertainty_ns, causes.lost) == (10**18, 90, 0)
    tail = causes.tails["p95"]
    if what is None:
        assert (explained & SLOW, tail.shares[cause].value) == (set(), 0)
    else:
        assert explained >= SLOW
        assert tail.named[cause][0].what == what


def test_stamps_of_another_clock_are_not_trusted() -> None:
    causes, _ = traced(late_ns=3_000_000_000)
    tail = causes.tails["p95"]
    assert "400 of 400 launches lie outside their requests" in tail.not_seen["queued"]
    assert not {"queued", "own work"} & set(tail.shares)


def test_throttling_is_seen_where_telemetry_tells_of_it() -> None:
    sample = TelemetrySample(0, None, None, None, None)
    span = ThrottledSpan(10, 11, ("sw_power_cap",))
    telemetry = Telemetry(source="NVML", samples=(sample, sample), throttled=(span,))
    causes, _ = traced(telemetry=telemetry)
    assert "throttled" in causes.tails["p95"].shares
    causes, _ = traced()
    assert causes.tails["p95"].not_seen["throttled"] == "no reader"
