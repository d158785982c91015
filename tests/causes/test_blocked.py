"""Waits, collections and first uses in a trace: what they explain, and what hides them."""

from __future__ import annotations

import gc
import time
from typing import Any

from pytest_hwqueue.causes.cell_causes import unseen_on_host
from pytest_hwqueue.causes.explain import explain
from pytest_hwqueue.causes.garbage import noted_collections
from pytest_hwqueue.causes.trace_file import HostWork, Trace
from pytest_hwqueue.metrics.attribution import Request, RequestCause
from pytest_hwqueue.metrics.cpu_events import OffCpu, Wait
from pytest_hwqueue.metrics.delay_evidence import DeviceWork
from pytest_hwqueue.records.causes import Causes

MS = 1_000_000
_MAIN, _STREAM = 21, 22
_COUNT = 200
_SLOW = tuple(range(10, _COUNT, 25))
_PERIOD = 20 * MS


def run(**seen: Any) -> tuple[dict[int, RequestCause], Causes]:
    """Requests of 1 ms on one stream of the host, some of 9 ms, and what was seen of them."""
    requests, work = [], []
    for number in range(_COUNT):
        begin = number * _PERIOD
        end = begin + MS + number * 50 + (8 * MS if number in _SLOW else 0)
        work.append(DeviceWork("cell", 0, "gemm", begin, begin, end, number, begin))
        requests.append(Request(number, begin, begin, begin, end + 1000))
    told: dict[str, Any] = {
        "owner": "cell", "device_kind": "cpu", "threads": [_MAIN, _STREAM],
        "stream_threads": {_STREAM: 0}, "calls": [], "level": "perf-system", "refused": [],
        "off_cpu": [], "interrupts": [], "waits": [],
    }  # fmt: skip
    causes, attribution = explain(requests, Trace(**told | seen), work, {})
    return {one.request: one for one in attribution.tails["p95"].requests}, causes


def waits(tid: int, kind: Any, what: str) -> list[Wait]:
    """A wait of 8 ms in each slow request, while its kernel is on the stream."""
    return [
        Wait(tid, number * _PERIOD + MS // 2, number * _PERIOD + MS // 2 + 8 * MS, kind, what)
        for number in _SLOW
    ]


def named(found: dict[int, RequestCause]) -> set[tuple[str | None, str | None]]:
    return {(found[number].cause, found[number].what) for number in _SLOW}


def test_a_wait_of_the_thread_that_is_waited_for_is_named() -> None:
    what = "sleep (clock_nanosleep, at hrtimer_nanosleep)"
    found, causes = run(waits=waits(_STREAM, "sleep", what), waits_per_s=950.4)
    assert named(found) == {("blocked", what)}
    assert any("looked at 950 times a second" in limit for limit in causes.limits)


def test_who_launches_may_wait_while_a_stream_works() -> None:
    found, _ = run(waits=waits(_MAIN, "lock", "lock (futex)"))
    assert "blocked" not in {found[number].cause for number in _SLOW}


def away(tid: int) -> list[OffCpu]:
    return [
        OffCpu(tid, 0, 0, one.start_ns, one.end_ns, "preempted", one.start_ns, 99, "stress-ng")
        for one in waits(tid, "other", "")
    ]


def test_a_lock_whose_holder_may_have_had_no_cpu_is_no_wait() -> None:
    locked = waits(_STREAM, "lock", "lock (futex)")
    found, _ = run(waits=locked, off_cpu=away(_MAIN))
    assert named(found) == {("descheduled", "gave way to stress-ng")}
    slept = waits(_STREAM, "sleep", "sleep (nanosleep)")
    found, _ = run(waits=slept, off_cpu=away(_MAIN))
    assert named(found) == {("blocked", "sleep (nanosleep)")}


def test_a_stop_without_perf_is_seen_by_its_samples() -> None:
    found, _ = run(waits=waits(_STREAM, "stopped", "stopped by a signal"), off_cpu=None)
    assert named(found) == {("descheduled", "stopped by a signal")}


def host_work(name: str) -> list[HostWork]:
    return [
        HostWork(name=name, begin_ns=one.start_ns, end_ns=one.end_ns)
        for one in waits(_MAIN, "other", "")
    ]


def test_collections_first_uses_and_allocations_are_told_apart() -> None:
    found, _ = run(collections=host_work("generation 2"))
    assert named(found) == {("garbage collection", "generation 2")}
    for name, cause in (
        ("torch.compile", "compilation"), ("cuModuleLoadData", "compilation"),
        ("cuLibraryLoadData", "compilation"), ("cuLinkComplete", "compilation"),
        ("cudaMalloc", "allocation"), ("cudaHostAlloc", "allocation"),
    ):  # fmt: skip
        found, _ = run(calls=host_work(name))
        assert named(found) == {(cause, name)}


def test_a_collection_outweighs_the_lock_that_others_wait_for_meanwhile() -> None:
    locked = waits(_STREAM, "lock", "lock (futex)")
    found, _ = run(collections=host_work("generation 2"), waits=locked)
    assert named(found) == {("garbage collection", "generation 2")}


def test_what_cannot_be_seen_says_why() -> None:
    trace = Trace(
        owner="cell", device_kind="cpu", threads=[], stream_threads={}, calls=[], level="none",
        refused=[], waits_unseen="neither syscall nor wchan can be read",
    )  # fmt: skip
    assert unseen_on_host(trace) == {
        "blocked": "neither syscall nor wchan can be read",
        "allocation": "allocations of the CPU's memory cannot be seen",
    }
    simulated = trace.model_copy(update={"device_kind": "sim"})
    assert {"garbage collection", "compilation", "allocation", "blocked"} == set(
        unseen_on_host(simulated)
    )


def test_collections_are_noted_with_their_generation_and_only_in_the_block() -> None:
    with noted_collections(time.perf_counter_ns) as found:
        gc.collect(0)
        gc.collect()
    gc.collect()
    assert [one.name for one in found][-2:] == ["generation 0", "generation 2"]
    assert all(one.begin_ns < one.end_ns for one in found)
