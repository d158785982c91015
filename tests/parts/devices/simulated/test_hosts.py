"""Hosts of modelled tenants: launches take time, processes get cold, threads share a lock."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.simulated.colocation import (
    ModelledTenant,
    SharedDevice,
    operations_of,
    run_tenants,
)
from pytest_hwqueue.parts.devices.simulated.costs import CopyWork, KernelWork, Work
from pytest_hwqueue.parts.devices.simulated.profile import Hardware, RequestHost

SHORT = KernelWork(10)
WITHIN = KernelWork(10, within=True)
PLAIN = RequestHost()
RESTS = RequestHost(cold_factor=3, cold_after_ns=5000)


def run(
    *tenants: ModelledTenant, host: RequestHost = PLAIN, threads: bool = False
) -> list[list[int]]:
    """Latency of each tenant's requests, from their scheduled arrival, within 1 ms."""
    shared = SharedDevice(Hardware(slots=64), host=host, threads=threads)
    found = run_tenants(shared, tenants, 1_000_000, grace_ns=0)
    both = (zip(times.scheduled_ns, times.finished_ns, strict=True) for times in found)
    return [[finished - scheduled for scheduled, finished in each] for each in both]


def tenant(*arrivals_ns: int, works: Sequence[Work] = (SHORT,) * 10, seed: int = 0,
           name: str = "a") -> ModelledTenant:  # fmt: skip
    """Ten operations of 100 ns a request: at once when the one before ends, or as they arrive."""
    return ModelledTenant(
        name, tuple(works), host_ns=100, synchronise_ns=0, arrivals_ns=arrivals_ns or None,
        seed=seed,
    )  # fmt: skip


@given(operations=st.integers(1, 50), within=st.integers(0, 3))
def test_a_request_bound_by_launching_takes_what_its_operations_take(
    operations: int, within: int
) -> None:
    """What a library launches within an operation belongs to it."""
    works = (SHORT, *(WITHIN,) * within) * operations
    assert run(tenant(0, works=works)) == [[100 * operations + 10 * (1 + within)]]
    assert operations_of((*works, CopyWork(8)))[-2:] == (
        (SHORT, *(WITHIN,) * within), (CopyWork(8),),
    )  # fmt: skip


def test_a_process_that_rested_is_slow_once_and_a_neighbour_warms_only_its_own() -> None:
    # Warmed up, at once again, and after resting.
    assert run(tenant(0, 4000, 50_000), host=RESTS) == [[1010, 1010, 3010]]
    loop, due = tenant(name="loop"), tenant(500_500, name="due")
    assert set(run(loop, host=RESTS)[0][1:]) == {1010}
    assert run(loop, due, host=RESTS)[1] == [3010]
    (beside,) = run(loop, due, host=RESTS, threads=True)[1]
    assert 1010 < beside < 3010


@given(threads=st.integers(1, 6), handover=st.integers(0, 50))
def test_threads_of_a_process_take_turns_at_operations_and_pay_for_the_handover(
    threads: int, handover: int
) -> None:
    host = RequestHost(handover_ns=handover)
    tenants = [tenant(0, name=str(index)) for index in range(threads)]
    assert run(*tenants, host=host) == [[1010]] * threads
    handed_ns = handover if threads > 1 else 0
    turns = range(9 * threads + 1, 10 * threads + 1)  # of each one's last operation
    ends = [each * 100 + (each - 1) * handed_ns + 10 for each in turns]
    assert run(*tenants, host=host, threads=True) == [[end] for end in ends]


def test_requests_differ_by_their_spread_and_the_same_on_every_run() -> None:
    first, second = (run(tenant(seed=3), host=RequestHost(spread=0.2))[0] for _ in range(2))
    assert first == second
    assert len(set(first)) > 50
    assert median(first) == pytest.approx(1010, rel=0.05)


def served(concurrency: int, due_ns: list[int] | None = None) -> list[tuple[int, int, int]]:
    """When requests of 1 µs are due, start and end that are served at once."""
    one = ModelledTenant(
        "a", (KernelWork(1000),), host_ns=0, synchronise_ns=0, arrivals_ns=due_ns,
        concurrency=concurrency,
    )  # fmt: skip
    (times,) = run_tenants(SharedDevice(Hardware(slots=64)), [one], 1_000_000, grace_ns=0)
    return sorted(zip(times.scheduled_ns, times.started_ns, times.finished_ns, strict=True))


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(1, 5))
def test_requests_served_at_once_are_a_queue_with_as_many_servers(
    gaps_ns: list[int], concurrency: int
) -> None:
    free_ns = [0] * concurrency
    expected = []
    for due in accumulate(gaps_ns):
        started = max(due, heapq.heappop(free_ns))
        heapq.heappush(free_ns, started + 1000)
        expected.append((due, started, started + 1000))
    assert served(concurrency, list(accumulate(gaps_ns))) == sorted(expected)


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_a_closed_loop_keeps_as_many_requests_in_flight(concurrency: int) -> None:
    found = served(concurrency)
    assert len(found) == 1000 * concurrency  # within 1 ms
    assert {ended - due for due, _, ended in found} == {1000}
