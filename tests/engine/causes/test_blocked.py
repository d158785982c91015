"""Waits, collections and first uses in a trace: what they explain, and what hides them."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch._dynamo

from pytest_hwqueue.data.metrics.attribution import DeviceWork, Request, RequestCause
from pytest_hwqueue.data.metrics.cpu_events import OffCpu, OffCpuReason
from pytest_hwqueue.data.records.noise import Causes
from pytest_hwqueue.engine.causes.explain import HostWork, Trace, explain
from pytest_hwqueue.engine.causes.traced_pass import noted_collections, noted_compilations

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
        "stream_threads": {_STREAM: 0}, "calls": [], "level": "perf", "refused": [],
        "off_cpu": [], "interrupts": [],
    }  # fmt: skip
    causes, attribution = explain(requests, Trace(**told | seen), work, {})
    return {one.request: one for one in attribution.tails["p95"].requests}, causes


def away(tid: int, reason: OffCpuReason = "waited", runnable: int | None = None) -> list[OffCpu]:
    """Off the CPU for 8 ms in each slow request, while its kernel is on the stream."""
    found = []
    for number in _SLOW:
        begin = number * _PERIOD + MS // 2
        woken = begin if reason == "preempted" else runnable and begin + runnable
        found.append(OffCpu(tid, 0, 0, begin, begin + 8 * MS, reason, woken, 99, "stress-ng"))
    return found


def named(found: dict[int, RequestCause]) -> set[tuple[str | None, str | None]]:
    return {(found[number].cause, found[number].what) for number in _SLOW}


@pytest.mark.parametrize(("gone", "told"), [
    (away(_STREAM), ("blocked", "waited")),
    # Woken soon, it only lacked a CPU.
    (away(_STREAM, runnable=MS), ("descheduled", "had no CPU when it was woken")),
    (away(_STREAM, "stopped"), ("descheduled", "stopped by a signal")),
    (away(_STREAM, "preempted"), ("descheduled", "gave way to stress-ng")),
    # Who launches may wait while a stream works; none of these is on the path.
    (away(_MAIN), (None, None)),
    (away(_MAIN, "preempted"), (None, None)),
    # The one on the path may wait for the other, which may hold a lock and has no CPU.
    (away(_STREAM) + away(_MAIN, "preempted"), ("descheduled", "gave way to stress-ng")),
    (away(_STREAM) + away(_MAIN), ("blocked", "waited")),
])  # fmt: skip
def test_what_switches_tell(gone: list[OffCpu], told: tuple[str | None, str | None]) -> None:
    found, _ = run(off_cpu=gone)
    assert named(found) == {told}


@pytest.mark.parametrize(("name", "cause"), [
    ("torch.compile", "compilation"), ("cuModuleLoadData", "compilation"),
    ("cuLibraryLoadData", "compilation"), ("cuLinkComplete", "compilation"),
    ("cudaMalloc", "allocation"), ("cudaHostAlloc", "allocation"),
    ("generation 2", "garbage collection"),
])  # fmt: skip
def test_collections_first_uses_and_allocations_are_told_apart(name: str, cause: str) -> None:
    work = [HostWork(name=name, begin_ns=one.start_ns, end_ns=one.end_ns) for one in away(_MAIN)]
    collections, calls = (work, []) if cause == "garbage collection" else ([], work)
    found, _ = run(collections=collections, calls=calls)
    assert named(found) == {(cause, name)}
    if collections:
        # It outweighs the lock that others wait for meanwhile.
        found, _ = run(collections=collections, off_cpu=away(_STREAM))
        assert named(found) == {(cause, name)}


def test_collections_and_compilations_are_noted_only_in_the_block() -> None:
    torch._dynamo.reset()
    with noted_compilations(time.perf_counter_ns):
        # As measured code may do, which drops all callbacks.
        torch._dynamo.reset()
    with (
        noted_compilations(time.perf_counter_ns) as spans,
        noted_collections(time.perf_counter_ns) as found,
    ):
        before_ns = time.perf_counter_ns()
        torch.compile(lambda x: x * 3, backend="eager")(torch.ones(2))
        after_ns = time.perf_counter_ns()
        gc.collect(0)
        gc.collect()
    gc.collect()
    assert spans
    assert all(before_ns <= begin <= end <= after_ns for begin, end in spans)
    assert [one.name for one in found][-2:] == ["generation 0", "generation 2"]
    assert all(one.begin_ns < one.end_ns for one in found)
