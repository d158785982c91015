"""The closed loop on a device with a clock of its own, where every true time is known."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.kinds import KINDS
from pytest_hwqueue.devices.launches import TagLog
from pytest_hwqueue.devices.protocol import Device, Event, Stream, StreamPool
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.harness import closed_loop
from pytest_hwqueue.harness.closed_loop import LoopPlan, LoopResult, measure, warm_up
from pytest_hwqueue.harness.program import Program
from pytest_hwqueue.records.cell import WarmUp

LAUNCH_NS = 7
LEAD_IN = 3  # iterations that are run before the first sample
PAUSE_NS = 10**12
PIPELINED = ("end_only", "none")


class Clock:
    """The host's time. Only what is modelled here makes it pass."""

    def __init__(self) -> None:
        self.now_ns = 1_000


class FakeEvent:
    """A point in a stream's work; it passes when the stream gets there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.when_ns: int | None = None

    def query(self) -> bool:
        return self.when_ns is None or self._clock.now_ns >= self.when_ns

    def synchronize(self) -> None:
        raise AssertionError("the loop waits for whole streams only")


class FakeStream:
    """Runs what is launched one after the other, each for the time that its function returns."""

    priority = 0
    handle = 0

    def __init__(self, pool: FakePool, index: int) -> None:
        self._pool = pool
        self.index = index
        self.free_ns = 0

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        pool = self._pool
        pool.clock.now_ns += LAUNCH_NS
        tagged = None if tag is None or pool.tags is None else pool.tags.next(tag, self.index)
        if tagged is not None:
            self.record(tagged.ready)
        duration = function(*arguments)
        assert isinstance(duration, int)
        self.free_ns = max(self.free_ns, pool.clock.now_ns) + duration
        if tagged is not None:
            self.record(tagged.done)

    def record(self, event: Event | None = None) -> Event:
        recorded = FakeEvent(self._pool.clock) if event is None else event
        assert isinstance(recorded, FakeEvent)
        recorded.when_ns = max(self.free_ns, self._pool.clock.now_ns)
        return recorded

    def wait(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        self.free_ns = max(self.free_ns, event.when_ns or 0)

    def synchronize(self) -> None:
        self._pool.clock.now_ns = max(self._pool.clock.now_ns, self.free_ns)


class FakePool:
    """Streams under one clock."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock = clock
        self.tags: TagLog | None = None
        self.streams = tuple(FakeStream(self, index) for index in range(count))
        self.synchronised = 0

    def record_all(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        event.when_ns = max(self.clock.now_ns, *(stream.free_ns for stream in self.streams))

    def synchronize(self) -> None:
        self.synchronised += 1
        for stream in self.streams:
            stream.synchronize()


class FakeDevice:
    """Makes events, and refuses to time one that has not passed."""

    capabilities = KINDS["cuda"]

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.events = 0

    def clock_ns(self) -> int:
        return self._clock.now_ns

    def sleep_until_ns(self, when_ns: int) -> None:
        self._clock.now_ns = max(self._clock.now_ns, when_ns)

    def new_event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self._clock)

    def elapsed_ns(self, start: Event, end: Event) -> int:
        assert isinstance(start, FakeEvent)
        assert isinstance(end, FakeEvent)
        assert start.when_ns is not None
        assert end.when_ns is not None
        assert start.query(), "read before it completed"
        assert end.query(), "read before it completed"
        return end.when_ns - start.when_ns


@dataclass
class Rig:
    """A device, streams and a clock, and what the loop did between iterations."""

    clock: Clock
    device: FakeDevice
    pool: FakePool
    paused: list[int]
    enqueued: int = 0
    in_iteration: bool = False

    def program(self, durations: Sequence[int], tag: str | None = None) -> Program:
        """An iteration that launches one kernel on each stream."""

        def enqueue(streams: Sequence[Stream]) -> None:
            self.in_iteration = True
            for stream, duration in zip(streams, durations, strict=True):
                stream.launch(lambda ns=duration: ns, tag=tag)
            self.enqueued += 1
            self.in_iteration = False

        return Program(enqueue, TagLog(self.device.new_event) if tag else None)

    def measure(self, program: Program, plan: LoopPlan) -> LoopResult:
        return measure(
            cast(Device, self.device), cast(StreamPool, self.pool), program, plan, self.pause
        )

    def warm_up(self, program: Program, plan: LoopPlan) -> WarmUp:
        return warm_up(cast(Device, self.device), cast(StreamPool, self.pool), program, plan)

    def pause(self, done: int) -> None:
        assert not self.in_iteration
        self.paused.append(done)
        self.clock.now_ns += PAUSE_NS


def make_rig(streams: int) -> Rig:
    clock = Clock()
    return Rig(clock, FakeDevice(clock), FakePool(clock, streams), [])


def plan(
    iterations: int = 5,
    *,
    sync_mode: str = "per_iteration",
    max_time_ns: int = 10**15,
    warmup: int = 0,
    iteration_ns: int = 0,
) -> LoopPlan:
    return LoopPlan(iterations, warmup, max_time_ns, sync_mode, iteration_ns)


def iteration_ns(durations: Sequence[int]) -> int:
    """How long an iteration takes from idle streams: kernels start as soon as launched."""
    return max(LAUNCH_NS * (index + 1) + ns for index, ns in enumerate(durations))


DURATIONS = st.lists(st.integers(1, 1000), min_size=1, max_size=4)


@settings(deadline=None, max_examples=25)
@given(DURATIONS, st.integers(1, 20))
def test_synchronised_samples_are_the_true_times(durations: list[int], iterations: int) -> None:
    rig = make_rig(len(durations))
    result = rig.measure(rig.program(durations), plan(iterations))
    true_ns = iteration_ns(durations)
    assert result.host_ns == [true_ns] * iterations
    assert result.device_ns == [true_ns] * iterations
    assert result.enqueue_ns == [LAUNCH_NS * len(durations)] * iterations
    assert all(h >= e for h, e in zip(result.host_ns, result.enqueue_ns, strict=True))
    assert (result.pace_ns, result.tags_ns, result.iterations) == ([], {}, iterations)
    assert result.stopped == f"{iterations} iterations"
    assert rig.enqueued == LEAD_IN + iterations
    assert rig.pool.synchronised == rig.enqueued


@settings(deadline=None, max_examples=25)
@given(DURATIONS, st.integers(1, 20), st.sampled_from(PIPELINED))
def test_pipelined_times_come_from_events(
    durations: list[int], iterations: int, sync_mode: str
) -> None:
    rig = make_rig(len(durations))
    began_ns = rig.clock.now_ns
    result = rig.measure(rig.program(durations), plan(iterations, sync_mode=sync_mode))
    # Truth: launches cost the host the same each time, and streams run what they are given.
    host_ns, free = began_ns, [0] * len(durations)
    starts, ends = [], []
    for _ in range(iterations):
        starts.append(min(max(host_ns, each) for each in free))
        for index, ns in enumerate(durations):
            host_ns += LAUNCH_NS
            free[index] = max(free[index], host_ns) + ns
        ends.append(max(max(host_ns, each) for each in free))
    assert result.device_ns == [end - start for start, end in zip(starts, ends, strict=True)]
    assert sum(result.pace_ns) == ends[-1] - began_ns
    assert result.pace_ns[1:] == [b - a for a, b in pairwise(ends)]
    assert result.enqueue_ns == [LAUNCH_NS * len(durations)] * iterations
    assert result.host_ns == []
    assert result.stopped == f"{iterations} iterations"
    assert rig.paused == [iterations]


@pytest.mark.parametrize("sync_mode", PIPELINED)
def test_pipelined_iterations_are_not_synchronised_one_by_one(sync_mode: str) -> None:
    rig = make_rig(2)
    synchronised_at: list[int] = []
    synchronize = rig.pool.synchronize

    def note() -> None:
        synchronised_at.append(rig.enqueued)
        synchronize()

    rig.pool.synchronize = note  # type: ignore[method-assign]
    rig.measure(rig.program([500, 500]), plan(30, sync_mode=sync_mode))
    assert set(synchronised_at) == {0, 30}


@pytest.mark.parametrize(
    ("cap", "done", "reason"),
    [
        (1, 1, "time cap of 1e-09 s"),
        (299, 3, "time cap of 2.99e-07 s"),
        (300, 3, "time cap of 3e-07 s"),
        (301, 4, "time cap of 3.01e-07 s"),
        # The last iteration ends as the cap passes: nothing was cut off.
        (901, 10, "10 iterations"),
        (1_000, 10, "10 iterations"),
    ],
)
def test_time_cap_ends_behind_the_iteration_that_passes_it(
    cap: int, done: int, reason: str
) -> None:
    rig = make_rig(1)
    result = rig.measure(rig.program([100 - LAUNCH_NS]), plan(10, max_time_ns=cap))
    assert (result.iterations, result.stopped) == (done, reason)
    assert len(result.host_ns) == len(result.enqueue_ns) == len(result.device_ns) == done


@pytest.mark.parametrize("sync_mode", PIPELINED)
@pytest.mark.parametrize(
    ("cap", "one_ns", "done", "reason"),
    [
        (1_000, 100, 10, "time cap of 1e-06 s"),
        (50, 100, 1, "time cap of 5e-08 s"),
        (2_000, 100, 20, "20 iterations"),
        (10**9, 100, 20, "20 iterations"),
        (10**9, 0, 20, "20 iterations"),
    ],
)
def test_pipelined_time_cap_is_kept_by_the_time_of_an_iteration(
    sync_mode: str, cap: int, one_ns: int, done: int, reason: str
) -> None:
    rig = make_rig(1)
    loop_plan = plan(20, sync_mode=sync_mode, max_time_ns=cap, iteration_ns=one_ns)
    result = rig.measure(rig.program([93]), loop_plan)
    assert (result.iterations, result.stopped, rig.enqueued) == (done, reason, done)
    assert len(result.pace_ns) == len(result.enqueue_ns) == done


def test_pipelined_loop_keeps_no_more_events_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_loop, "_MOST_EVENTS", 40)
    rig = make_rig(2)
    result = rig.measure(rig.program([5, 5]), plan(100, sync_mode="end_only"))
    assert result.iterations == 10
    assert result.stopped == "40 events, the most kept without synchronising"
    assert rig.device.events == 40


@pytest.mark.parametrize("sync_mode", ["per_iteration", *PIPELINED])
def test_each_tagged_launch_is_a_sample(sync_mode: str) -> None:
    rig = make_rig(3)
    program = rig.program([50, 60, 70], tag="t")
    rig.warm_up(program, plan(warmup=1, max_time_ns=4))
    made = rig.device.events
    rig.enqueued = 0
    result = rig.measure(program, plan(6, sync_mode=sync_mode))
    assert {tag: len(values) for tag, values in result.tags_ns.items()} == {"t": 18}
    if sync_mode == "per_iteration":
        assert result.tags_ns["t"] == [50, 60, 70] * 6
        assert rig.device.events - made == 2, "events of tags were made while measuring"


def test_lead_in_is_no_sample_and_takes_none_of_the_time() -> None:
    rig = make_rig(1)
    times = iter([10**6] * LEAD_IN + [100] * 10)
    tags = TagLog(rig.device.new_event)

    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(lambda: next(times) - LAUNCH_NS, tag="t")

    result = rig.measure(Program(enqueue, tags), plan(10, max_time_ns=1_000))
    assert result.host_ns == result.device_ns == [100] * 10
    assert result.tags_ns == {"t": [100 - LAUNCH_NS] * 10}
    assert result.stopped == "10 iterations"
    assert rig.device.events == 2 + 2


def test_pauses_come_between_iterations_and_cost_no_sample() -> None:
    rig = make_rig(1)
    # Two iterations and a half fit between two pauses.
    one_ns = closed_loop._PAUSE_NS * 2 // 5
    result = rig.measure(rig.program([one_ns - LAUNCH_NS]), plan(10, max_time_ns=10**15))
    assert rig.paused == [3, 6, 9]
    assert result.host_ns == [one_ns] * 10
    assert result.device_ns == [one_ns] * 10


@pytest.mark.parametrize("sync_mode", ["per_iteration", *PIPELINED])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_collection_is_held_and_then_as_before(
    sync_mode: str, enabled: bool, fails: bool
) -> None:
    rig = make_rig(1)
    seen: list[bool] = []

    def enqueue(streams: Sequence[Stream]) -> None:
        seen.append(gc.isenabled())
        streams[0].launch(lambda: 10)
        if fails and len(seen) == 5:
            raise RuntimeError("the fifth iteration fails")

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        if fails:
            with pytest.raises(RuntimeError, match="fifth iteration"):
                rig.measure(Program(enqueue, None), plan(5, sync_mode=sync_mode))
        else:
            rig.measure(Program(enqueue, None), plan(5, sync_mode=sync_mode))
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    lead_in = LEAD_IN if sync_mode == "per_iteration" else 0
    assert seen == [False] * (5 if fails else lead_in + 5)


def warming(rig: Rig, times_ns: Iterator[int]) -> Program:
    """Iterations that take the times given, launching included."""

    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(lambda: next(times_ns) - LAUNCH_NS)

    return Program(enqueue, None)


def endless(*first: int) -> Iterator[int]:
    yield from first
    while True:
        yield first[-1]


@pytest.mark.parametrize(("warmup", "iterations"), [(0, 10), (9, 10), (10, 10), (25, 25)])
def test_warm_up_takes_two_windows_or_what_was_asked_for(warmup: int, iterations: int) -> None:
    rig = make_rig(1)
    warmed = rig.warm_up(warming(rig, endless(1000)), plan(warmup=warmup))
    assert warmed == WarmUp(
        iterations=iterations,
        iteration_ns=1000,
        stable=True,
        reason="two windows agree within 5 %",
    )


def test_warm_up_goes_on_until_the_time_has_settled() -> None:
    rig = make_rig(1)
    times = [9000, 8000, 7000, 6000, 5000, 4000, 3000, 2000]
    warmed = rig.warm_up(warming(rig, endless(*times)), plan())
    taken = [*times, *[2000] * 100][: warmed.iterations]

    def windows_agree(count: int) -> bool:
        last, before = median(taken[count - 5 : count]), median(taken[count - 10 : count - 5])
        return abs(last - before) <= 0.05 * before

    assert warmed.stable
    assert warmed.iteration_ns == 2000
    assert windows_agree(warmed.iterations)
    assert not any(windows_agree(count) for count in range(10, warmed.iterations))


def test_warm_up_that_does_not_settle_says_so_at_a_quarter_of_the_time() -> None:
    rig = make_rig(1)
    growing = (round(1000 * 1.2**number) for number in range(1000))
    began_ns = rig.clock.now_ns
    warmed = rig.warm_up(warming(rig, growing), plan(max_time_ns=4_000_000))
    assert not warmed.stable
    assert warmed.reason == "changing after 0.001 s"
    took_ns = rig.clock.now_ns - began_ns
    times = [round(1000 * 1.2**number) for number in range(warmed.iterations)]
    assert took_ns == sum(times) >= 1_000_000 > sum(times[:-1])
    assert warmed.iteration_ns == times[-3]  # the middle one of the last five


def test_warm_up_is_at_least_what_was_asked_for_whatever_the_time() -> None:
    rig = make_rig(1)
    warmed = rig.warm_up(warming(rig, endless(1000)), plan(warmup=7, max_time_ns=4))
    assert (warmed.iterations, warmed.stable) == (7, False)


def test_warm_up_leaves_the_tags_of_one_iteration() -> None:
    rig = make_rig(2)

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(lambda: 10, tag="t")

    tags = TagLog(rig.device.new_event)
    rig.warm_up(Program(enqueue, tags), plan())
    assert rig.device.events == 4
    collected: dict[str, list[int]] = {}
    tags.collect(rig.device.elapsed_ns, collected)
    assert collected == {"t": [10, 10]}


class Noting:
    """A window that notes what happened before it opened, in it and after it closed."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.happened: list[str] = []

    def opened(self) -> None:
        assert not gc.isenabled()
        self.happened.append(f"opened at {self._rig.enqueued}")

    def closed(self) -> None:
        assert not gc.isenabled()
        self.happened.append(f"closed at {self._rig.enqueued}")

    def collected(self, phase: str, info: dict[str, int]) -> None:
        self.happened.append(f"collection {phase} of generation {info['generation']}")


@pytest.mark.parametrize(
    ("sync_mode", "enqueued"), [("per_iteration", LEAD_IN + 5), ("end_only", 5), ("none", 5)]
)
def test_window_opens_when_garbage_is_collected_and_closes_with_the_last_iteration(
    sync_mode: str, enqueued: int
) -> None:
    rig = make_rig(2)
    window = Noting(rig)
    gc.callbacks.append(window.collected)
    try:
        measure(
            cast(Device, rig.device), cast(StreamPool, rig.pool), rig.program([5, 5]),
            plan(5, sync_mode=sync_mode), rig.pause, window=window,
        )  # fmt: skip
    finally:
        gc.callbacks.remove(window.collected)
    # What was collected by itself before measuring was of a younger generation.
    full = [each for each in window.happened if "generation" not in each or "2" in each]
    assert full[:4] == [
        "collection start of generation 2", "collection stop of generation 2",
        "opened at 0", f"closed at {enqueued}",
    ]  # fmt: skip


def _last(kernel: Callable[[], None], streams: Sequence[Stream]) -> None:
    streams[-1].launch(kernel)


def test_streams_without_work_cost_an_iteration_nothing() -> None:
    """One kernel on the last stream; joining it costs, joining the others would cost as much."""
    found = []
    for streams in (2, 8, 64):
        device = SimulatedDevice("h200")
        with device.open_streams(streams) as pool:
            program = Program(partial(_last, device.kernel_of(5_000)), None)
            result = measure(device, pool, program, plan(3), lambda done: None)
        found.append((result.host_ns, result.device_ns))
    assert found[0] == found[1] == found[2]
