"""The closed loop on a device with a clock of its own, where every true time is known."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise, repeat
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.records.cell import WarmUp
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.engine.cell import closed_loop
from pytest_hwqueue.engine.cell.closed_loop import (
    MOST_EVENTS,
    LoopResult,
    Plan,
    measure,
    warm_up,
)
from pytest_hwqueue.engine.cell.program import Program
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.cpu_counters import CpuCounting
from pytest_hwqueue.parts.devices.launches import TagLog
from pytest_hwqueue.parts.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice

LAUNCH_NS = 7
LEAD_IN = 3  # iterations that are run before the first sample
PAUSE_NS = 10**12
PIPELINED = ("end_only", "none")
MODES = ("per_iteration", *PIPELINED)


class FakeEvent:
    """A point in a stream's work; it passes when the stream gets there."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.when_ns = 0

    def query(self) -> bool:
        return self._device.now_ns >= self.when_ns


class FakeStream:
    """Runs what is launched one after the other, each for the time that its function returns."""

    priority = handle = 0

    def __init__(self, device: FakeDevice, index: int) -> None:
        self.device, self.index, self.free_ns = device, index, 0

    def launch(self, function: Callable[[], int], *, tag: str | None = None) -> None:
        device = self.device
        device.now_ns += LAUNCH_NS
        timed = None if tag is None or device.tags is None else device.tags.next(tag, self.index)
        self.record(timed and timed.ready)
        self.free_ns = max(self.free_ns, device.now_ns) + function()
        self.record(timed and timed.done)

    def record(self, event: object) -> None:
        if isinstance(event, FakeEvent):
            event.when_ns = max(self.free_ns, self.device.now_ns)


class FakeDevice:
    """A device and its own pool; only what is modelled here makes time pass."""

    capabilities = KINDS["cuda"]

    def __init__(self, streams: int) -> None:
        self.now_ns, self.events, self.synchronised, self.enqueued = 1_000, 0, 0, 0
        self.tags: TagLog | None = None
        self.streams = [FakeStream(self, index) for index in range(streams)]
        self.paused: list[int] = []

    def clock_ns(self) -> int:
        return self.now_ns

    def sleep_until_ns(self, when_ns: int) -> None:
        self.now_ns = max(self.now_ns, when_ns)

    def new_event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self)

    def elapsed_ns(self, start: FakeEvent, end: FakeEvent) -> int:
        assert start.query(), "read before it completed"
        assert end.query(), "read before it completed"
        return end.when_ns - start.when_ns

    def record_all(self, event: FakeEvent) -> None:
        event.when_ns = max(self.now_ns, *(stream.free_ns for stream in self.streams))

    def synchronize(self) -> None:
        self.synchronised += 1
        self.now_ns = max(self.now_ns, *(stream.free_ns for stream in self.streams))

    def pause(self, done: int) -> None:
        self.paused.append(done)
        self.now_ns += PAUSE_NS

    def program(self, *times_ns: Iterator[int], tagged: bool = False) -> Program:
        """An iteration that launches a kernel on each stream, which takes its next time."""

        def enqueue(streams: Sequence[Stream]) -> None:
            for stream, times in zip(streams, times_ns, strict=True):
                stream.launch(lambda times=times: next(times), tag="t" if tagged else None)
            self.enqueued += 1

        return Program(enqueue, TagLog(cast(Device, self).new_event) if tagged else None)

    def measure(self, program: Program, plan: Plan) -> LoopResult:
        return measure(cast(Device, self), cast(StreamPool, self), program, plan, self.pause)

    def warm_up(self, program: Program, plan: Plan) -> WarmUp:
        return warm_up(cast(Device, self), cast(StreamPool, self), program, plan)


def plan(
    iterations: int = 5,
    sync_mode: str = "per_iteration",
    max_time_ns: int = 10**15,
    warmup: int = 0,
    iteration_ns: int = 0,
) -> Plan:
    return Plan(StopRule(iterations, max_time_ns), warmup, sync_mode, iteration_ns=iteration_ns)


def test_the_cache_is_emptied_before_each_iteration_and_outside_of_what_is_measured() -> None:
    def emptied() -> None:
        done.append(device.enqueued)
        device.now_ns += 1_000_000

    device, done = FakeDevice(1), list[int]()
    cold = replace(plan(5, warmup=2), flush=emptied)
    result = device.measure(device.program(repeat(50), tagged=True), cold)
    assert result.host_ns == result.device_ns == [LAUNCH_NS + 50] * 5
    assert result.tags_ns == {"t": [50] * 5}
    assert done == [LEAD_IN + number for number in range(5)]
    done.clear()
    device.enqueued = 0
    warm = device.warm_up(device.program(repeat(50)), cold)
    # What an iteration takes is what it will take.
    assert warm.iteration_ns == LAUNCH_NS + 50
    assert done == list(range(warm.iterations))


DURATIONS = st.lists(st.integers(1, 1000), min_size=1, max_size=4)


@settings(max_examples=25)
@given(DURATIONS, st.integers(1, 20))
def test_synchronised_samples_are_the_true_times(durations: list[int], iterations: int) -> None:
    device = FakeDevice(len(durations))
    result = device.measure(device.program(*map(repeat, durations), tagged=True), plan(iterations))
    # From idle streams kernels start as soon as launched.
    true_ns = max(LAUNCH_NS * (index + 1) + ns for index, ns in enumerate(durations))
    assert result.host_ns == result.device_ns == [true_ns] * iterations
    assert result.enqueue_ns == [LAUNCH_NS * len(durations)] * iterations
    assert (result.pace_ns, result.tags_ns) == ([], {"t": durations * iterations})
    assert (result.iterations, result.stopped) == (iterations, f"{iterations} iterations")
    assert device.enqueued == device.synchronised == LEAD_IN + iterations
    assert device.events == 2 + 2 * len(durations), "events were made while measuring"


@settings(max_examples=25)
@given(DURATIONS, st.integers(1, 20), st.sampled_from(PIPELINED))
def test_pipelined_times_come_from_events(
    durations: list[int], iterations: int, sync_mode: str
) -> None:
    device = FakeDevice(len(durations))
    began_ns = device.now_ns
    program = device.program(*map(repeat, durations), tagged=True)
    result = device.measure(program, plan(iterations, sync_mode))
    # Truth: launches cost the host the same each time, and streams run what they are given.
    host_ns, free = began_ns, [0] * len(durations)
    ends = []
    for _ in range(iterations):
        for index, ns in enumerate(durations):
            host_ns += LAUNCH_NS
            free[index] = max(free[index], host_ns) + ns
        ends.append(max(max(host_ns, each) for each in free))
    assert (result.device_ns, result.iterations) == ([], iterations)
    assert result.pace_ns == [b - a for a, b in pairwise([began_ns, *ends])]
    assert result.enqueue_ns == [LAUNCH_NS * len(durations)] * iterations
    assert (result.host_ns, result.stopped) == ([], f"{iterations} iterations")
    assert len(result.tags_ns["t"]) == iterations * len(durations)
    assert device.paused == [iterations]
    assert device.synchronised == 2, "iterations were synchronised one by one"


@pytest.mark.parametrize(
    ("mode", "cap_ns", "iteration_ns", "done", "reason"),
    [
        # Behind the iteration that passes it; what ends as the cap passes was not cut off.
        ("per_iteration", 1, 0, 1, "time cap of 1e-09 s"),
        ("per_iteration", 300, 0, 3, "time cap of 3e-07 s"),
        ("per_iteration", 301, 0, 4, "time cap of 3.01e-07 s"),
        ("per_iteration", 901, 0, 10, "10 iterations"),
        # By the time of an iteration in the warm-up: nothing is waited for.
        *(
            (mode, *row)
            for mode in PIPELINED
            for row in (
                (500, 100, 5, "time cap of 5e-07 s"),
                (50, 100, 1, "time cap of 5e-08 s"),
                (1_000, 100, 10, "10 iterations"),
                (10**9, 0, 10, "10 iterations"),
            )
        ),
    ],
)
def test_time_cap_ends_measuring(
    mode: str, cap_ns: int, iteration_ns: int, done: int, reason: str
) -> None:
    device = FakeDevice(1)
    capped = plan(10, mode, cap_ns, iteration_ns=iteration_ns)
    result = device.measure(device.program(repeat(100 - LAUNCH_NS)), capped)
    assert (result.iterations, result.stopped) == (done, reason)
    assert len(result.host_ns or result.pace_ns) == len(result.enqueue_ns) == done


def test_pipelined_loop_keeps_no_more_events_than_it_may() -> None:
    streams = MOST_EVENTS // 20
    device = FakeDevice(streams)
    program = device.program(*(repeat(5) for _ in range(streams)))
    result = device.measure(program, plan(100, "end_only"))
    # And the one at which they begin.
    assert (result.iterations, device.events) == (20, MOST_EVENTS + 1)
    assert result.stopped == f"{MOST_EVENTS} events, the most kept without synchronising"


@pytest.mark.parametrize("sync_mode", PIPELINED)
def test_streams_that_drift_apart_show_their_pace_and_not_their_backlog(sync_mode: str) -> None:
    """The second stream ends its 200 iterations when the first is at its second."""
    device = FakeDevice(2)
    fast_ns, slow_ns = 10, 100_000
    result = device.measure(device.program(repeat(slow_ns), repeat(fast_ns)), plan(200, sync_mode))
    assert result.device_ns == result.host_ns == []
    assert result.pace_ns[1:] == [slow_ns] * 199
    assert sum(result.pace_ns) == pytest.approx(200 * slow_ns, rel=1e-3)


def test_lead_in_and_pauses_are_no_sample_and_take_none_of_the_time() -> None:
    device = FakeDevice(1)
    # Two iterations and a half fit between two pauses.
    one_ns = closed_loop.PAUSE_NS * 2 // 5
    times = chain([10**15] * LEAD_IN, repeat(one_ns - LAUNCH_NS))
    result = device.measure(device.program(times, tagged=True), plan(10, max_time_ns=10**14))
    assert result.host_ns == result.device_ns == [one_ns] * 10
    assert result.tags_ns == {"t": [one_ns - LAUNCH_NS] * 10}
    assert (device.paused, result.stopped) == ([3, 6, 9], "10 iterations")


class Window(CpuCounting):
    """Notes how much garbage had been collected, and whether it may be."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.happened: list[str] = []

    def opened(self) -> None:
        self.happened.append("opened")

    def closed(self) -> None:
        self.happened.append("closed")

    def collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            self.happened.append(f"collection {phase}")


@pytest.mark.parametrize("sync_mode", MODES)
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_is_collected_before_the_window_and_never_within(
    sync_mode: str, fails: bool
) -> None:
    device, window, seen = FakeDevice(1), Window(), []

    def enqueue(streams: Sequence[Stream]) -> None:
        seen.append((gc.isenabled(), window.happened[-1]))
        streams[0].launch(lambda: 10)
        if fails and len(seen) == 5:
            raise RuntimeError("the fifth iteration fails")

    before = gc.isenabled()
    gc.callbacks.append(window.collected)
    try:
        with pytest.raises(RuntimeError, match="fifth") if fails else nullcontext():
            measure(
                cast(Device, device), cast(StreamPool, device), Program(enqueue, None),
                plan(5, sync_mode), device.pause, window=window,
            )  # fmt: skip
    finally:
        gc.callbacks.remove(window.collected)
    assert gc.isenabled() is before
    lead_in = LEAD_IN if sync_mode == "per_iteration" else 0
    assert seen == [(False, "opened")] * (5 if fails else lead_in + 5)
    wanted = ["collection start", "collection stop", "opened", *([] if fails else ["closed"])]
    assert window.happened[: len(wanted)] == wanted


SETTLED = "two windows agree within 5 %"
FALLING = [9000, 8000, 7000, 6000, 5000, 4000, 3000, 2000]


@pytest.mark.parametrize(
    ("times_ns", "warmup", "max_time_ns", "wanted"),
    [
        ([1000], 0, 10**15, (10, 1000, True, SETTLED)),
        ([1000], 11, 10**15, (11, 1000, True, SETTLED)),
        # Medians of five: those before must be 2000 too, which the 12th to 16th time are not.
        (FALLING, 0, 10**15, (15, 2000, True, SETTLED)),
        ([*[1000] * 5, 1051], 0, 10**15, (13, 1051, True, SETTLED)),
        ([*[1000] * 5, 1050], 0, 10**15, (10, 1050, True, SETTLED)),
        # At a quarter of the time: 1,000 ns, with the fourth iteration.
        ([100, 200, 400, 800], 0, 4000, (4, 300, False, "changing after 1e-06 s")),
        ([1000], 7, 4, (7, 1000, False, "changing after 1e-09 s")),
        # Five seconds at most.
        ([10**9, 3 * 10**9], 0, 10**15, (3, 3 * 10**9, False, "changing after 5 s")),
    ],
)
def test_warm_up_goes_on_until_the_time_has_settled(
    times_ns: list[int], warmup: int, max_time_ns: int, wanted: tuple[int, int, bool, str]
) -> None:
    device = FakeDevice(1)
    times = (ns - LAUNCH_NS for ns in chain(times_ns, repeat(times_ns[-1])))
    warming = plan(warmup=warmup, max_time_ns=max_time_ns)
    warmed = device.warm_up(device.program(times), warming)
    assert (warmed.iterations, warmed.iteration_ns, warmed.stable, warmed.reason) == wanted


def _last(kernel: Callable[[], None], streams: Sequence[Stream]) -> None:
    streams[-1].launch(kernel)


def test_streams_without_work_cost_an_iteration_nothing() -> None:
    """One kernel on the last stream; joining it costs, joining the others would cost as much."""
    found = []
    for streams in (2, 16):
        device = SimulatedDevice("h200")
        with device.open_streams(streams) as pool:
            program = Program(partial(_last, device.kernel_of(5_000)), None)
            result = measure(device, pool, program, plan(3), lambda done: None)
        found.append((result.host_ns, result.device_ns))
    assert found[0] == found[1]
