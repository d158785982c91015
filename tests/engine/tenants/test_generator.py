"""The generator of load: by a schedule or closed, with limited connections; no server needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from pytest_hwqueue.data.errors import HwqError, InvalidMeasurement
from pytest_hwqueue.engine.tenants.open_loop import (
    GREEDY,
    MOST_FAILURES_IN_A_ROW,
    Demand,
    Load,
    Reply,
    StoppedServing,
    Window,
    lateness,
    overloaded_reason,
)
from pytest_hwqueue.engine.tenants.server_load import generate, refuse_impossible

MS = 1_000_000


def load(
    request: Callable[[], Awaitable[Reply | None]],
    schedule: list[int] | None,
    concurrency: int,
    window_ms: int = 200,
    loop: Demand = GREEDY,
) -> Load:
    for ahead_ms in (20, 200, 2000):
        begin_ns = time.monotonic_ns() + ahead_ms * MS
        window = Window(begin_ns, begin_ns + window_ms * MS)
        try:
            return asyncio.run(
                generate(request, replace(loop, schedule=schedule), window, concurrency)
            )
        except InvalidMeasurement as error:
            # A machine that is busy elsewhere may not be ready in 20 ms.
            if "after the window had" not in str(error):
                raise
    raise AssertionError("not ready within 2 s")


def taking(seconds: float) -> Callable[[], Awaitable[None]]:
    async def request() -> None:
        await asyncio.sleep(seconds)

    return request


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def request() -> None:
        raise error

    return request


def test_a_request_that_waits_for_a_connection_counts_its_wait() -> None:
    """Four at once, two connections, 50 ms each: the last two are served after the first two."""
    found = load(taking(0.05), [10 * MS] * 4, 2)
    assert (found.completed, found.unserved, found.most_at_once) == (4, 0, 2)
    assert list(found.scheduled_ns) == [10 * MS] * 4
    latencies = [end - due for due, end in zip(found.scheduled_ns, found.finished_ns, strict=True)]
    # Lower bounds: what a machine adds makes them longer. asyncio may wake a clock's tick early.
    assert min(latencies[:2]) >= 49 * MS
    assert min(latencies[2:]) >= 98 * MS
    late = lateness(found)
    assert late is not None
    # Waiting for a connection is the server's doing, not the generator's.
    free_ns = [10 * MS, 10 * MS, *sorted(found.finished_ns[:2])]
    expected = [began - free for began, free in zip(found.started_ns, free_ns, strict=True)]
    assert late.max_us == max(expected) / 1e3


def test_a_connection_that_is_not_free_yet_is_no_lateness() -> None:
    """Its answer is whole after 1 ms; what follows it takes 60 ms more."""

    async def request() -> Reply:
        await asyncio.sleep(0.001)
        done_ns = time.monotonic_ns()
        await asyncio.sleep(0.06)
        return Reply(done_ns, done_ns, done_ns, 1, "usage", done_ns)

    found = load(request, [10 * MS] * 4, 2)
    late = lateness(found)
    assert late is not None
    free_ns = [10 * MS, 10 * MS, *sorted(found.freed_ns[:2])]
    expected = [began - free for began, free in zip(found.started_ns, free_ns, strict=True)]
    assert late.max_us == max(expected) / 1e3
    held_ns = [free - end for free, end in zip(found.freed_ns, found.finished_ns, strict=True)]
    assert min(held_ns) >= 59 * MS


def test_how_busy_the_generator_was_is_its_work_and_its_wait_for_a_core() -> None:
    async def work() -> None:
        until_ns = time.thread_time_ns() + 2 * MS
        while time.thread_time_ns() < until_ns:
            pass

    working = load(work, None, 4).busy
    assert working is not None
    reason = overloaded_reason(working)
    assert reason is not None
    assert "the load generator was busy for" in reason
    # In an open loop it looks at the clock, which is no work; what a busy machine adds is waiting.
    waiting = [load(taking(0.001), [*range(0, 200 * MS, MS)], 4).busy for _ in range(3)]
    assert min(each for each in waiting if each is not None) < working
    assert overloaded_reason(0.8) is None


def test_an_answer_that_takes_long_hides_no_busy_window() -> None:
    number = 0

    async def request() -> None:
        nonlocal number
        number += 1
        if number == 2:
            await asyncio.sleep(0.8)
            return
        until_ns = time.thread_time_ns() + 2 * MS
        while time.thread_time_ns() < until_ns:
            pass
        await asyncio.sleep(0)

    found = load(request, None, 4)
    assert max(found.finished_ns) > 700 * MS
    assert overloaded_reason(found.busy) is not None
    # One request at its beginning does not make a window busy.
    once = load(request, [0], 1)
    assert once.busy is not None
    assert once.worked is not None
    assert once.worked < 0.5


def test_arrivals_beyond_what_can_be_sent_are_refused_before_the_window() -> None:
    window = Window(0, 1_000 * MS)
    # Half a second of work for 1,000 requests: .5 ms each.
    warm = Load([0] * 1000, [0] * 1000, [1] * 1000, closed=True, worked=0.5, busy=1.0)
    asked = Demand([number * MS // 3 for number in range(3000)])
    with pytest.raises(HwqError, match=r"ask for 3,000 requests/s, .* can send some 2,000/s"):
        refuse_impossible(warm, window, asked, 1.0)
    refuse_impossible(warm, window, asked, 2.0)
    refuse_impossible(warm, window, GREEDY, 1.0)
    few = Load([0] * 5, [0] * 5, [1] * 5, closed=True, worked=0.5, busy=0.5)
    refuse_impossible(few, window, asked, 1.0)


def test_a_stall_is_felt_by_every_request_due_meanwhile() -> None:
    """One stall of 300 ms, on a server of one worker: no coordinated omission."""
    free_at_s, stall_s, number = 0.0, 0.3, 0

    async def request() -> None:
        nonlocal free_at_s, number
        number += 1
        begins_s = max(time.monotonic(), free_at_s)
        free_at_s = begins_s + (stall_s if number == 10 else 0.0)
        await asyncio.sleep(max(0.0, free_at_s - time.monotonic()))

    schedule = [index * 5 * MS for index in range(100)]
    log = load(request, schedule, 4, window_ms=500)
    assert (log.completed, log.unserved) == (100, 0)
    latencies = [end - due for due, end in zip(log.scheduled_ns, log.finished_ns, strict=True)]
    stalled_ns = log.started_ns[9]
    for index in range(9, 100):
        left_ns = stalled_ns + round(stall_s * 1e9) - schedule[index]
        assert latencies[index] >= left_ns - MS


def test_p99_of_a_stall_is_that_of_the_servers_own_log() -> None:
    """Both clocks are read without a switch between them, so a busy machine delays both."""
    free_at_s, received_ns, done_ns = 0.0, [], []

    async def request() -> None:
        nonlocal free_at_s
        received_ns.append(time.monotonic_ns())
        begins_s = max(time.monotonic(), free_at_s)
        free_at_s = begins_s + (0.8 if len(received_ns) == 50 else 0.0)
        await asyncio.sleep(max(0.0, free_at_s - time.monotonic()))
        done_ns.append(time.monotonic_ns())

    schedule = [index * 5 * MS for index in range(250)]
    log = load(request, schedule, 16, window_ms=1250)
    assert log.completed == 250
    began = zip(received_ns, log.started_ns, strict=True)
    begin_ns = min(received - started for received, started in began)
    expected = [done - begin_ns - due for done, due in zip(done_ns, schedule, strict=True)]
    found = [end - due for due, end in zip(log.scheduled_ns, log.finished_ns, strict=True)]
    expected_ns, found_ns = (float(np.quantile(each, 0.99)) for each in (expected, found))
    assert expected_ns > 700 * MS
    assert found_ns == pytest.approx(expected_ns, rel=0.02)


def test_what_is_not_begun_when_the_grace_is_over_is_unserved() -> None:
    log = load(taking(1.5), [0, 0, MS], 1, window_ms=20)
    assert (log.issued, len(log.started_ns), log.unserved) == (3, 1, 2)


def test_a_closed_loop_keeps_so_many_in_flight_until_the_window_ends() -> None:
    found = load(taking(0.01), None, 3, window_ms=100)
    assert found.most_at_once == 3
    assert found.closed
    assert found.scheduled_ns == found.started_ns
    assert max(found.started_ns) < 100 * MS
    assert found.unserved == 0
    assert lateness(found) is None
    later = load(taking(0.01), None, 3, window_ms=100, loop=Demand(first_ns=60 * MS))
    assert len(later.started_ns) > 3
    assert 60 * MS <= min(later.started_ns) <= max(later.started_ns) < 100 * MS


def test_a_closed_loop_waits_between_requests_and_counts_them() -> None:
    log = load(taking(0.001), None, 1, window_ms=5000, loop=Demand(None, 0, 5 * MS, 4))
    assert log.completed == 4
    gaps = [b - a for a, b in zip(log.finished_ns, log.started_ns[1:], strict=False)]
    assert min(gaps) >= 5 * MS


@pytest.mark.parametrize(
    "error", [HwqError("no"), ValueError("Chunk too big"), AssertionError(), EOFError("x")]
)
@pytest.mark.parametrize("schedule", [[index * MS for index in range(20)], None])
def test_a_request_that_raises_anything_has_failed_in_its_place(
    error: Exception, schedule: list[int] | None
) -> None:
    number = 0

    async def request() -> Reply:
        nonlocal number
        number += 1
        mine = number
        await asyncio.sleep(0.001)
        if mine % 2:
            raise error
        return Reply(1, None, 2, mine, "usage", time.monotonic_ns())

    # A machine that is busy elsewhere for all of a window would begin no request of a loop.
    found = load(request, schedule, 1, window_ms=20 if schedule else 150)
    assert [each.index for each in found.failed] == list(range(0, number, 2))
    assert len(found.failed) == len(found.started_ns) - found.completed
    said = "no" if isinstance(error, HwqError) else f"{type(error).__name__}: {error}"
    assert {each.reason for each in found.failed} == {said}
    tokens = [reply and reply.tokens for reply in found.replies]
    assert tokens == [None if mine % 2 else mine for mine in range(1, number + 1)]


@pytest.mark.parametrize("schedule", [[0, MS, 2 * MS], None])
@pytest.mark.parametrize("raised", [asyncio.CancelledError, KeyboardInterrupt])
def test_a_cancelled_request_ends_the_load(
    schedule: list[int] | None, raised: type[BaseException]
) -> None:
    with pytest.raises(raised):
        load(raising(raised()), schedule, 1)


def test_a_loop_in_which_everything_fails_ends() -> None:
    said = f"{MOST_FAILURES_IN_A_ROW:,} requests failed in a row; the last: no"
    with pytest.raises(StoppedServing, match=said) as stopped:
        load(raising(HwqError("no")), None, 1, window_ms=600_000)
    seen = stopped.value.load
    most = MOST_FAILURES_IN_A_ROW
    assert (len(seen.failed), len(seen.replies), seen.most_at_once) == (most, most, 1)


def test_a_late_generator_is_seen_and_a_window_that_has_begun_refused() -> None:
    async def block() -> None:
        time.sleep(0.005)  # what keeps the generator itself from going on

    late = lateness(load(block, [index * MS for index in range(20)], 4))
    assert late is not None
    assert late.p50_us >= 5_000
    window = Window(time.monotonic_ns() - MS, time.monotonic_ns() + MS)
    with pytest.raises(InvalidMeasurement, match="after the window had"):
        asyncio.run(generate(taking(0.0), Demand([0]), window, 1))
