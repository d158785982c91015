"""Hosts of modelled tenants: launches take time, processes get cold, threads share a lock."""

from __future__ import annotations

import heapq
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.simulated.colocation import (
    ModelledTenant,
    ModelledTimes,
    operations_of,
    run_tenants,
)
from pytest_hwqueue.devices.simulated.costs import CopyWork, KernelWork
from pytest_hwqueue.devices.simulated.profile import Hardware, RequestHost

SHORT = KernelWork(10)
WITHIN = KernelWork(10, within=True)


def run(
    *tenants: ModelledTenant, host: RequestHost | None = None, threads: bool = False
) -> list[ModelledTimes]:
    return run_tenants(
        Hardware(slots=64), tenants, 1_000_000, "together", grace_ns=0, host=host, threads=threads
    )


def latencies_ns(times: ModelledTimes) -> list[int]:
    """Latency of each request, from its scheduled arrival."""
    both = zip(times.scheduled_ns, times.finished_ns, strict=True)
    return [finished - scheduled for scheduled, finished in both]


def tenant(name: str = "a", operations: int = 10, **settings: object) -> ModelledTenant:
    return ModelledTenant(
        name, (SHORT,) * operations, host_ns=100, synchronise_ns=0, **settings  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_a_library_launches_within_an_operation_belongs_to_it() -> None:
    copy = CopyWork(8)
    assert operations_of((SHORT, WITHIN, WITHIN, copy, SHORT)) == (
        (SHORT, WITHIN, WITHIN), (copy,), (SHORT,),
    )  # fmt: skip


@given(operations=st.integers(1, 50), within=st.integers(0, 3))
def test_a_request_bound_by_launching_takes_what_its_operations_take(
    operations: int, within: int
) -> None:
    kernels = (SHORT, *(WITHIN,) * within) * operations
    alone = ModelledTenant("a", kernels, host_ns=100, synchronise_ns=0, arrivals_ns=[0])
    (times,) = run(alone)
    assert latencies_ns(times) == [100 * operations + 10 * (1 + within)]


def test_a_process_that_rested_is_slow_once() -> None:
    host = RequestHost(cold_factor=3, cold_after_ns=5000)
    (times,) = run(tenant(arrivals_ns=[0, 4000, 50_000]), host=host)
    # Warmed up, at once again, and after resting.
    assert latencies_ns(times) == [1010, 1010, 3010]


def test_a_closed_loop_stays_warm() -> None:
    host = RequestHost(cold_factor=3, cold_after_ns=5000)
    (times,) = run(tenant(), host=host)
    assert set(latencies_ns(times)[1:]) == {1010}


def test_a_neighbour_keeps_only_its_own_process_warm() -> None:
    host = RequestHost(cold_factor=3, cold_after_ns=5000)
    due = tenant("due", arrivals_ns=[500_500])
    apart = latencies_ns(run(tenant("loop"), due, host=host)[1])
    assert apart == [3010]
    beside = latencies_ns(run(tenant("loop"), due, host=host, threads=True)[1])
    assert 1010 < beside[0] < 3010


def test_threads_of_a_process_take_turns_at_operations() -> None:
    both = [tenant(name, arrivals_ns=[0]) for name in "ab"]
    apart = [latencies_ns(times) for times in run(*both)]
    assert apart == [[1010], [1010]]
    first, second = (latencies_ns(times) for times in run(*both, threads=True))
    assert (first, second) == ([1910], [2010])


@given(threads=st.integers(1, 6), handover=st.integers(0, 50))
def test_passing_the_lock_on_costs_its_handover(threads: int, handover: int) -> None:
    host = RequestHost(handover_ns=handover)
    tenants = [tenant(str(index), arrivals_ns=[0]) for index in range(threads)]
    last = max(latencies_ns(times)[0] for times in run(*tenants, host=host, threads=True))
    passed_on = 0 if threads == 1 else 10 * threads - 1
    assert last == 10 * threads * 100 + passed_on * handover + 10


@given(seed=st.integers(0, 9))
def test_requests_differ_by_their_spread_and_the_same_on_every_run(seed: int) -> None:
    host = RequestHost(spread=0.2)
    runs = [latencies_ns(run(tenant(seed=seed), host=host)[0]) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 50
    middle = sorted(runs[0])[len(runs[0]) // 2]
    assert middle == pytest.approx(1010, rel=0.05)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(1, 5))
def test_requests_served_at_once_are_a_queue_with_as_many_servers(
    gaps_ns: list[int], concurrency: int
) -> None:
    service_ns = 1000
    due_ns = list(accumulate(gaps_ns))
    one = ModelledTenant(
        "a", (KernelWork(service_ns),), host_ns=0, synchronise_ns=0, arrivals_ns=due_ns,
        concurrency=concurrency,
    )  # fmt: skip
    (times,) = run(one)
    free_ns = [0] * concurrency
    expected = []
    for due in due_ns:
        started = max(due, heapq.heappop(free_ns))
        heapq.heappush(free_ns, started + service_ns)
        expected.append((due, started, started + service_ns))
    found = zip(times.scheduled_ns, times.started_ns, times.finished_ns, strict=True)
    assert sorted(found) == sorted(expected)


@given(concurrency=st.integers(1, 8))
def test_a_closed_loop_keeps_as_many_requests_in_flight(concurrency: int) -> None:
    one = ModelledTenant(
        "a", (KernelWork(1000),), host_ns=0, synchronise_ns=0, concurrency=concurrency
    )
    (times,) = run(one)
    # Within 1 ms, each of 1 µs on a multiprocessor of its own.
    assert len(times.finished_ns) == 1000 * concurrency
    assert set(latencies_ns(times)) == {1000}
