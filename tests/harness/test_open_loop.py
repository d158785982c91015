"""The open loop on virtual clocks, where every true time is known, and once on a real one."""

from __future__ import annotations

import gc
import heapq
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.kinds import KINDS
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import InvalidMeasurement
from pytest_hwqueue.harness import open_loop
from pytest_hwqueue.harness.closed_loop import garbage_collection_held
from pytest_hwqueue.harness.open_loop import (
    FailedRequest,
    Lateness,
    RequestLog,
    StoppedServing,
    Window,
    invalid_reason,
    lateness,
    serve,
)

MS = 1_000_000
SECOND = 1_000 * MS
BEGIN = 5 * SECOND


def latencies_ns(log: RequestLog) -> list[int]:
    """Latency of each completed request, from its scheduled time, in order of arrival."""
    failed = {request.index for request in log.failed}
    times = zip(log.scheduled_ns, log.finished_ns, strict=True)
    return [
        finished - scheduled
        for index, (scheduled, finished) in enumerate(times)
        if index not in failed
    ]


@pytest.fixture(autouse=True, scope="module")
def _garbage_collection_held() -> Iterator[None]:
    """Spares each call to collect."""
    with garbage_collection_held():
        yield


class FakeDevice:
    """A virtual clock that sleeping and requests move, and that sleeping may overshoot."""

    capabilities = KINDS["sim"]

    def __init__(self, oversleeps_ns: int = 0) -> None:
        self.now_ns = 0
        self.oversleeps_ns = oversleeps_ns

    def clock_ns(self) -> int:
        return self.now_ns

    def sleep_until_ns(self, when_ns: int) -> None:
        self.now_ns = max(self.now_ns, when_ns) + self.oversleeps_ns


class LookedAtDevice(FakeDevice):
    """A clock that moves by 100 ns each time one looks at it, as a real one does."""

    capabilities = KINDS["cpu"]

    def clock_ns(self) -> int:
        self.now_ns += 100
        return self.now_ns


Step = int | Exception


def serve_fake(
    schedule: list[int] | None,
    steps: Iterator[Step],
    *,
    device: FakeDevice | None = None,
    duration_ns: int = 10 * SECOND,
) -> RequestLog:
    """Serve requests that take the times given, or raise at once."""
    device = FakeDevice() if device is None else device

    def request() -> None:
        step = next(steps)
        if isinstance(step, Exception):
            raise step
        device.now_ns += step

    window = Window(BEGIN, BEGIN + duration_ns)
    return serve(cast(Device, device), [request], schedule, window)


def always(step: Step) -> Iterator[Step]:
    while True:
        yield step


gaps = st.lists(st.integers(0, 3 * MS), min_size=1, max_size=200)


@given(gaps, st.data())
def test_starts_are_those_of_a_queue_with_one_server(
    gaps_ns: list[int], data: st.DataObject
) -> None:
    schedule = list(accumulate(gaps_ns))
    n = len(schedule)
    service = data.draw(st.lists(st.integers(0, 5 * MS), min_size=n, max_size=n))
    log = serve_fake(schedule, iter(service))
    # Lindley's recursion (D. V. Lindley, The theory of queues with a single server, 1952): a
    # request waits for what is left of its predecessor's wait and service when it arrives.
    waits = [0]
    for index in range(1, n):
        waits.append(max(0, waits[-1] + service[index - 1] - gaps_ns[index]))
    assert log.scheduled_ns.tolist() == schedule
    assert log.started_ns.tolist() == [s + wait for s, wait in zip(schedule, waits, strict=True)]
    assert latencies_ns(log) == [wait + time for wait, time in zip(waits, service, strict=True)]
    assert (log.closed, log.failed, log.unserved) == (False, [], 0)
    assert (log.issued, log.completed) == (n, n)
    assert lateness(log) == Lateness(0, 0, 0, n)


@given(gaps, st.data())
def test_what_the_generator_adds_is_lateness_and_latency_contains_it(
    gaps_ns: list[int], data: st.DataObject
) -> None:
    schedule = list(accumulate(gaps_ns))
    n = len(schedule)
    service = data.draw(st.lists(st.integers(0, 5 * MS), min_size=n, max_size=n))
    oversleeps_ns = data.draw(st.integers(1, 4 * MS))
    log = serve_fake(schedule, iter(service), device=FakeDevice(oversleeps_ns))
    free = -1
    late: list[int] = []
    for due, time, start, end in zip(
        schedule, service, log.started_ns, log.finished_ns, strict=True
    ):
        late.append(oversleeps_ns if due > free else 0)
        assert start == max(due, free) + late[-1]
        assert end == start + time
        free = end
    late.sort()
    seen = lateness(log)
    assert seen is not None
    assert seen.max_us == late[-1] / 1e3
    # Nearest rank: the least value with 99 % (50 %) of the requests at or below it.
    assert seen.p99_us == min(v for v in late if sum(w <= v for w in late) * 100 >= 99 * n) / 1e3
    assert seen.p50_us == min(v for v in late if sum(w <= v for w in late) * 2 >= n) / 1e3


def test_latency_behind_a_stall_counts_from_the_schedule() -> None:
    """Coordinated omission: what could not be sent while the server hung was late all the same."""
    schedule = [index * 10 * MS for index in range(1000)]
    service = [MS] * 1000
    service[300] = 2 * SECOND
    log = serve_fake(schedule, iter(service))
    latencies = latencies_ns(log)
    assert latencies[:300] == [MS] * 300
    assert latencies[300] == 2 * SECOND
    # Each of those behind it came 10 ms later and was served in 1 ms: the queue melts by 9 ms.
    behind = [2 * SECOND - 9 * MS * index for index in range(1, 223)]
    assert latencies[301:523] == behind
    assert latencies[523:] == [MS] * 477
    # A loop that counts from the start of each request would have seen one slow request.
    from_start = [end - start for start, end in zip(log.started_ns, log.finished_ns, strict=True)]
    assert sum(time > MS for time in from_start) == 1
    assert invalid_reason(log) is None, "the server was slow, and not the generator"


def test_a_late_generator_makes_the_run_invalid() -> None:
    schedule = [index * 10 * MS for index in range(1000)]
    log = serve_fake(schedule, always(4 * MS), device=FakeDevice(oversleeps_ns=3 * MS))
    assert latencies_ns(log) == [7 * MS] * 1000
    assert lateness(log) == Lateness(3000, 3000, 3000, 1000)
    reason = invalid_reason(log)
    assert reason is not None
    assert reason.startswith("the generator was late: P99 of 1000 requests started 3 ms after")
    assert "the limit is 1 ms; give each tenant a core" in reason
    assert invalid_reason(log, limit_ms=3) is None


def log_of(late_ns: list[int]) -> RequestLog:
    scheduled = [index * SECOND for index in range(len(late_ns))]
    started = [due + late for due, late in zip(scheduled, late_ns, strict=True)]
    return RequestLog(False, array("q", scheduled), array("q", started), array("q", started))


@pytest.mark.parametrize(
    ("late", "of", "valid"), [(1, 100, True), (2, 100, False), (1, 99, False), (10, 1000, True)]
)
def test_one_request_in_a_hundred_may_be_late(late: int, of: int, valid: bool) -> None:
    log = log_of([0] * (of - late) + [MS + 1] * late)
    assert (invalid_reason(log) is None) is valid
    assert invalid_reason(log_of([MS] * of)) is None, "the limit itself is allowed"


def test_without_requests_there_is_no_lateness() -> None:
    log = serve_fake([], always(0))
    assert (log.issued, log.completed, latencies_ns(log)) == (0, 0, [])
    assert lateness(log) is None
    assert invalid_reason(log) is None


@given(st.lists(st.integers(1, 300 * MS), min_size=1, max_size=50), st.integers(1, SECOND))
def test_a_closed_loop_starts_the_next_when_the_last_is_done(
    service: list[int], duration_ns: int
) -> None:
    log = serve_fake(None, iter([*service, *[2 * SECOND] * 2]), duration_ns=duration_ns)
    n = len(log.started_ns)
    served = [*service, 2 * SECOND][:n]
    assert log.closed
    assert log.scheduled_ns == log.started_ns
    assert log.finished_ns.tolist() == list(accumulate(served))
    assert log.started_ns.tolist() == [0, *accumulate(served[:-1])]
    assert latencies_ns(log) == served
    # The last one started within the window, and no other would have.
    assert log.started_ns[-1] < duration_ns <= log.finished_ns[-1]
    assert (log.issued, log.completed, log.unserved) == (n, n, 0)
    assert lateness(log) is None
    assert invalid_reason(log) is None


@pytest.mark.parametrize(
    ("duration_ns", "grace_ns"),
    [(2 * SECOND, SECOND), (10 * SECOND, SECOND), (60 * SECOND, 6 * SECOND)],
)
def test_requests_not_started_within_the_grace_are_unserved(
    duration_ns: int, grace_ns: int
) -> None:
    n = duration_ns // (10 * MS)
    schedule = [index * 10 * MS for index in range(n)]
    log = serve_fake(schedule, always(100 * MS), duration_ns=duration_ns)
    served = (duration_ns + grace_ns) // (100 * MS)
    assert log.completed == served
    assert log.unserved == n - served
    assert log.issued == n
    assert log.started_ns[-1] == duration_ns + grace_ns - 100 * MS
    assert serve_fake(schedule[:3], always(SECOND), duration_ns=duration_ns).unserved == 0


@pytest.mark.parametrize("schedule", [None, [0]])
def test_the_window_is_waited_for_and_never_joined_late(schedule: list[int] | None) -> None:
    def ready_at(when_ns: int) -> FakeDevice:
        device = FakeDevice()
        device.now_ns = when_ns
        return device

    for when_ns in (0, BEGIN):
        log = serve_fake(schedule, always(MS), device=ready_at(when_ns), duration_ns=MS)
        assert log.started_ns.tolist() == [0]
    with pytest.raises(InvalidMeasurement, match="ready 3 ms after the window had begun"):
        serve_fake(schedule, always(MS), device=ready_at(BEGIN + 3 * MS))


def test_requests_that_fail_are_counted_and_the_next_is_served() -> None:
    steps: list[Step] = [MS, ValueError("the  input\nis bad"), MS, KeyError("x"), 4 * MS, MS]
    log = serve_fake([index * 2 * MS for index in range(6)], iter(steps))
    assert log.failed == [
        FailedRequest(1, "ValueError: the input is bad"),
        FailedRequest(3, "KeyError: 'x'"),
    ]
    assert log.scheduled_ns.tolist() == [0, 2 * MS, 4 * MS, 6 * MS, 8 * MS, 10 * MS]
    assert log.finished_ns.tolist() == [MS, 2 * MS, 5 * MS, 6 * MS, 12 * MS, 13 * MS]
    assert (log.issued, log.completed, log.unserved) == (6, 4, 0)
    assert latencies_ns(log) == [MS, MS, 4 * MS, 3 * MS]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA error: an illegal memory access"), "^device error: CUDA error: an ill"),
        (torch.OutOfMemoryError("tried to allocate 2 GiB"), "^out of memory: tried to allocate"),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_an_error_that_stays_with_the_process_ends_the_tenant(
    error: Exception, reason: str, closed: bool
) -> None:
    steps: list[Step] = [MS, ValueError("bad"), error]
    schedule = None if closed else [0, MS, 2 * MS, 3 * MS, 4 * MS]
    with pytest.raises(StoppedServing, match=reason) as raised:
        serve_fake(schedule, iter(steps))
    assert raised.value.__cause__ is error
    log = raised.value.log
    assert log.closed is closed
    assert [failure.index for failure in log.failed] == [1, 2]
    assert (log.issued, log.completed, log.unserved) == ((3, 1, 0) if closed else (5, 1, 2))
    assert latencies_ns(log) == [MS]


def test_a_closed_loop_in_which_everything_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_loop, "MOST_FAILURES_IN_A_ROW", 3)
    broken = ValueError("broken")
    steps: list[Step] = [broken, broken, MS, broken, broken, broken]
    reason = r"^3 requests failed in a row; the last: ValueError: broken$"
    with pytest.raises(StoppedServing, match=reason) as raised:
        serve_fake(None, iter(steps))
    assert (raised.value.log.issued, raised.value.log.completed) == (6, 1)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_is_no_failed_request(stop: type[BaseException]) -> None:
    def request() -> None:
        raise stop

    with pytest.raises(stop):
        serve(cast(Device, FakeDevice()), [request], [0], Window(0, 1))


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ([0, 2, 1], "must ascend"),
        ([-1, 0], "within its window of 100 ns"),
        ([0, 100], "within its window of 100 ns"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(schedule: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        serve_fake(schedule, always(0), duration_ns=100)


def test_a_window_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="from 7 to 7 ns has no length"):
        Window(7, 7)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("schedule", [None, [0, MS]])
def test_garbage_collection_is_held_and_then_as_before(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, schedule: list[int] | None
) -> None:
    collected: list[bool] = []
    seen: list[bool] = []

    def steps() -> Iterator[Step]:
        while True:
            seen.append(gc.isenabled())
            yield MS

    monkeypatch.setattr(gc, "collect", lambda: collected.append(True))
    if enabled:
        gc.enable()
    try:
        serve_fake(schedule, steps(), duration_ns=2 * MS)
        assert gc.isenabled() is enabled
    finally:
        gc.disable()
    assert seen == [False, False]
    # Who holds garbage collection off has collected already.
    assert len(collected) == enabled


def test_on_a_real_clock_the_end_of_each_wait_is_watched() -> None:
    # Any sleep ends 0.15 ms late, as with timer slack; watching starts 0.2 ms before, and
    # the second request is due too soon after the first for a sleep.
    device = LookedAtDevice(oversleeps_ns=MS * 15 // 100)
    schedule = [MS, 2 * MS + MS // 10, 9 * MS]
    late = lateness(serve_fake(schedule, always(MS), device=device))
    assert late is not None
    assert late.max_us <= 0.3


def test_on_the_simulated_device_time_is_virtual_and_exact() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        kernel = device.kernel_of(3 * MS)

        def request() -> None:
            pool.streams[0].launch(kernel)
            pool.streams[0].synchronize()

        begin_ns = device.clock_ns() + SECOND
        # An hour of virtual time, and a burst of three in it.
        schedule = [0, 10 * MS, 11 * MS, 12 * MS, 3599 * SECOND]
        log = serve(device, [request], schedule, Window(begin_ns, begin_ns + 3600 * SECOND))
    assert lateness(log) == Lateness(0, 0, 0, 5)
    one_ns = latencies_ns(log)[0]
    assert one_ns > 3 * MS
    assert latencies_ns(log) == [one_ns, one_ns, 2 * one_ns - MS, 3 * one_ns - 2 * MS, one_ns]


@pytest.mark.parametrize("schedule", [None, [0, 2 * MS, 4 * MS, 20 * MS]])
def test_on_the_host_the_log_agrees_with_the_requests_own_clock(
    schedule: list[int] | None,
) -> None:
    device = HostDevice()
    inside: list[tuple[int, int]] = []
    with device.open_streams(1) as pool:
        kernel: Callable[[], None] = device.kernel_of(200_000)

        def request() -> None:
            began_ns = device.clock_ns()
            pool.streams[0].launch(kernel)
            pool.streams[0].synchronize()
            inside.append((began_ns, device.clock_ns()))

        begin_ns = device.clock_ns() + 500 * MS
        log = serve(device, [request], schedule, Window(begin_ns, begin_ns + 200 * MS))
    assert len(inside) == len(log.started_ns) > 0
    if schedule is not None:
        assert log.scheduled_ns.tolist() == schedule
    free_ns = 0
    for scheduled, started, finished, (began, ended) in zip(
        log.scheduled_ns, log.started_ns, log.finished_ns, inside, strict=True
    ):
        assert max(scheduled, free_ns) <= started <= began - begin_ns
        assert began < ended <= finished + begin_ns
        free_ns = finished


@given(gaps, st.integers(1, 5), st.data())
def test_lateness_counts_from_when_one_of_several_slots_was_free(
    gaps_ns: list[int], concurrency: int, data: st.DataObject
) -> None:
    schedule = list(accumulate(gaps_ns))
    n = len(schedule)
    several = partial(st.lists, min_size=n, max_size=n)
    service = data.draw(several(st.integers(0, 5 * MS)))
    late = data.draw(several(st.integers(0, MS)))
    free_ns, started, finished = [0] * concurrency, [], []
    for due, time_ns, late_ns in zip(schedule, service, late, strict=True):
        started.append(max(due, heapq.heappop(free_ns)) + late_ns)
        finished.append(started[-1] + time_ns)
        heapq.heappush(free_ns, finished[-1])
    log = RequestLog(
        False, array("q", schedule), array("q", started), array("q", finished),
        concurrency=concurrency,
    )  # fmt: skip
    seen = lateness(log)
    assert seen is not None
    assert seen.max_us == max(late) / 1e3
    assert seen.n == n


def serve_at_once(
    requests: list[Callable[[], None]], schedule: list[int] | None, duration_ns: int = 300 * MS
) -> RequestLog:
    device = HostDevice()
    begin_ns = device.clock_ns() + 500 * MS
    return serve(device, requests, schedule, Window(begin_ns, begin_ns + duration_ns))


def test_requests_are_served_at_once_and_logged_in_order_of_arrival() -> None:
    # Nobody passes before four are there: fewer at once would break the barrier.
    together = threading.Barrier(4)

    def request() -> None:
        together.wait(timeout=30)

    schedule = [number * MS for number in range(8)]
    log = serve_at_once([request] * 4, schedule)
    assert log.failed == []
    assert log.concurrency == 4
    assert log.scheduled_ns.tolist() == schedule
    assert (log.completed, log.unserved) == (8, 0)
    started, finished = log.started_ns.tolist(), log.finished_ns.tolist()
    for four in (slice(4), slice(4, 8)):
        # All had started before one ended, none of them before it was due.
        assert max(started[four]) <= min(finished[four])
    assert all(due <= start for due, start in zip(schedule, started, strict=True))
    assert min(started[4:]) >= min(finished[:4])


def test_a_closed_loop_serves_as_many_at_once_until_the_window_ends() -> None:
    together = threading.Barrier(3)

    def request() -> None:
        # At the window's end some slots have stopped already.
        with suppress(threading.BrokenBarrierError):
            together.wait(timeout=0.2)

    log = serve_at_once([request] * 3, None)
    assert log.closed
    assert log.completed >= 3
    assert log.scheduled_ns == log.started_ns
    assert max(log.started_ns[:3]) <= min(log.finished_ns[:3])
    assert lateness(log) is None


def test_what_ends_the_process_in_one_slot_ends_all() -> None:
    error = RuntimeError("CUDA error: an illegal memory access")
    served = threading.Semaphore(0)

    def breaks() -> None:
        served.acquire(timeout=30)
        raise error

    # The one slot fails as soon as the other has served.
    schedule = [0, *range(MS, 250 * MS, MS)]
    with pytest.raises(StoppedServing, match="illegal memory access") as raised:
        serve_at_once([breaks, served.release], schedule)
    assert raised.value.__cause__ is error
    log = raised.value.log
    assert [failure.reason[:12] for failure in log.failed] == ["device error"]
    assert log.completed >= 1
    assert log.issued == len(schedule)
    assert log.unserved > 0


def test_a_failure_stands_at_its_place_in_the_order_of_arrival() -> None:
    device = HostDevice()
    raised_ns: list[int] = []

    def breaks() -> None:
        raised_ns.append(device.clock_ns())
        raise ValueError("planted")

    begin_ns = device.clock_ns() + 500 * MS
    window = Window(begin_ns, begin_ns + 300 * MS)
    log = serve(device, [breaks, lambda: None, breaks], [*range(0, 200 * MS, MS)], window)
    assert {failure.reason for failure in log.failed} <= {"ValueError: planted"}
    assert len(log.failed) == len(raised_ns) == 200 - log.completed
    assert len(latencies_ns(log)) == log.completed
    indices = [failure.index for failure in log.failed]
    assert indices == sorted(set(indices))
    spans = sorted((log.started_ns[index], log.finished_ns[index]) for index in indices)
    for (started, finished), when_ns in zip(spans, sorted(raised_ns), strict=True):
        assert started <= when_ns - begin_ns <= finished
