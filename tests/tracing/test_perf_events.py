"""Real switches and interrupts, planted and counted; skipped where the kernel does not allow it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_hwqueue.tracing.counters import counted_between, read_counters
from pytest_hwqueue.tracing.perf_events import OWN_THREAD, PerfTracer

from .victims import need, victim

MS = 1_000_000
LEVELS = ("perf-self", "perf-system")


@contextmanager
def busy_neighbour(cpu: int, *, realtime: bool = False) -> Iterator[None]:
    """A process that computes on a CPU, of our own session as real neighbours are.

    One of a real-time class computes half of the time, and whoever is there makes way for it.
    """
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), sys.executable, "-c", _NEIGHBOUR, str(int(realtime))],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("there is no right to a real-time class")
        yield
    finally:
        process.kill()
        process.communicate()


_NEIGHBOUR = """
import os, sys, time
open('/proc/self/comm', 'w').write('neighbour')
realtime = sys.argv[1] == "1"
if realtime:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        sys.exit()
print("computing", flush=True)
while True:
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        pass
    if realtime:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("job", ["doze", "doze_in_threads"])
def test_switches_are_as_many_as_proc_counts(level: str, job: str) -> None:
    need(level)
    with victim(job, level, 1.0) as running:
        found = running.report()
    assert found["level"] == level
    assert found["lost"] == 0
    # Before, after: when the counters began to be read, and when they had been.
    before, read_before, after, read_after = found["reading_ns"]
    for tid, (voluntary, involuntary) in found["proc"].items():
        own = [one for one in found["off_cpu"] if one.tid == int(tid)]
        for reason, counted in (("waited", voluntary), ("preempted", involuntary)):
            at = [one.start_ns for one in own if one.reason == reason]
            at_least = sum(read_before <= start <= after for start in at)
            at_most = sum(before <= start <= read_after for start in at)
            assert at_least <= counted <= at_most
    threads = {one.tid for one in found["off_cpu"]}
    if job == "doze_in_threads":
        # The two threads have ended, and only the trace knows them: 1 s of sleeps of 0.15 ms.
        assert len(threads) == 3
        for tid in threads - {int(tid) for tid in found["proc"]}:
            assert sum(one.tid == tid for one in found["off_cpu"]) > 100


@pytest.mark.parametrize("level", LEVELS)
def test_times_off_the_cpu_follow_each_other_inside_the_trace(level: str) -> None:
    need(level)
    with victim("doze", level, 0.3) as running:
        found = running.report()
    last = found["begin_ns"]
    for one in found["off_cpu"]:
        assert last <= one.start_ns <= one.end_ns <= found["end_ns"]
        last = one.end_ns


def test_a_stopped_process_is_found_stopped() -> None:
    need("perf-system")
    with victim("spin", "perf-system", 0.6) as running:
        time.sleep(0.1)
        running.process.send_signal(signal.SIGSTOP)
        stopped_ns = time.monotonic_ns()
        time.sleep(0.2)
        continued_ns = time.monotonic_ns()
        running.process.send_signal(signal.SIGCONT)
        found = running.report()
    stops = [one for one in found["off_cpu"] if one.reason == "stopped"]
    assert len(stops) == 1
    # The signal may take effect a moment after it was sent, never before.
    assert stops[0].start_ns < continued_ns <= stops[0].end_ns
    assert stops[0].end_ns - stops[0].start_ns >= 100 * MS
    assert stops[0].end_ns > stopped_ns
    assert stops[0].withheld == (stops[0].start_ns, stops[0].end_ns)


def test_without_tracepoints_a_stop_looks_like_a_wait_and_is_seen_still() -> None:
    need("perf-self")
    with victim("spin", "perf-self", 0.5) as running:
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        running.process.send_signal(signal.SIGCONT)
        found = running.report()
    longest = max(found["off_cpu"], key=lambda one: one.end_ns - one.start_ns)
    assert longest.end_ns - longest.start_ns >= 100 * MS
    assert (longest.reason, longest.next_comm, found["interrupts"]) == ("waited", None, None)


@pytest.mark.parametrize("level", LEVELS)
def test_a_busy_neighbour_on_the_same_cpu_preempts(level: str) -> None:
    need(level)
    cpu = min(os.sched_getaffinity(0))
    # Not only one of many that compute on a busy machine, where the rights allow it.
    realtime = level == "perf-system"
    with busy_neighbour(cpu, realtime=realtime), victim("spin", level, 1.0, cpu=cpu) as running:
        found = running.report()
    preempted = [one for one in found["off_cpu"] if one.reason == "preempted"]
    lost_ns = sum(one.end_ns - one.start_ns for one in preempted)
    assert lost_ns >= 0.2 * (found["end_ns"] - found["begin_ns"])
    assert {one.cpu for one in preempted} == {cpu}
    if level == "perf-system":
        # In 1 s it wakes some 50 times; other neighbours of the machine may come first sometimes.
        assert sum(one.next_comm == "neighbour" for one in preempted) >= 5
        assert found["interrupts"]


def test_a_thread_of_the_same_process_that_preempts_is_called_so() -> None:
    need("perf-system")
    cpu = min(os.sched_getaffinity(0))
    with victim("compete", "perf-system", 1.0, cpu=cpu) as running:
        found = running.report()
    main = running.process.pid
    by = [one for one in found["off_cpu"] if one.reason == "preempted" and one.tid == main]
    assert sum(one.next_comm == OWN_THREAD for one in by) >= 5


def test_wakings_come_before_running_on() -> None:
    need("perf-system")
    cpu = min(os.sched_getaffinity(0))
    # Not every kernel tells of wake-ups in the time of an idle CPU, which delay nobody.
    with busy_neighbour(cpu), victim("doze", "perf-system", 0.5, cpu=cpu) as running:
        found = running.report()
    waits = [one for one in found["off_cpu"] if one.reason == "waited"]
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        assert {one.runnable_ns for one in waits} == {None}
        pytest.skip("in a namespace of process numbers, wake-ups cannot be told")
    woken = [one for one in waits if one.runnable_ns is not None]
    assert len(woken) >= 0.9 * len(waits)
    assert all(one.start_ns <= one.runnable_ns <= one.end_ns for one in woken)


def test_interrupts_have_names_and_lengths_and_nest() -> None:
    need("perf-system")
    with victim("spin", "perf-system", 1.0) as running:
        found = running.report()
    # A second of computing has ticks, whatever else.
    names = {one.name for one in found["interrupts"]}
    assert names & {"local_timer", "arch_timer"}
    assert all(one.start_ns <= one.end_ns for one in found["interrupts"])
    open_until: dict[int, list[int]] = {}
    for one in found["interrupts"]:
        outer = open_until.setdefault(one.cpu, [])
        while outer and outer[-1] <= one.start_ns:
            outer.pop()
        assert not outer or one.end_ns <= outer[-1]
        outer.append(one.end_ns)


def test_what_does_not_fit_is_counted() -> None:
    need("perf-self")
    with victim("doze", "perf-self", 1.0, ring_bytes=4096) as running:
        found = running.report()
    ((voluntary, involuntary),) = found["proc"].values()
    seen = len(found["off_cpu"])
    assert seen < voluntary + involuntary
    # Two records for each switch: one out, one in.
    missing = 2 * (voluntary + involuntary - seen)
    assert found["lost"] == pytest.approx(missing, rel=0.02, abs=8)


def test_draining_in_between_loses_nothing() -> None:
    need("perf-self")
    tracer = PerfTracer([os.getpid()], ring_bytes=4096)
    try:
        tracer.start()
        before = read_counters()
        fullest = []
        for _ in range(300):
            time.sleep(1e-4)
            fullest.append(tracer.drain())
        taken_bytes = tracer.taken_bytes
        counted = counted_between(before, read_counters()).threads[os.getpid()]
        trace = tracer.stop()
        tracer.start()
        time.sleep(1e-3)
        again = tracer.stop()
    finally:
        tracer.close()
    assert trace.lost == 0
    assert 0 < max(fullest) < 1
    # Of one ring, and on whichever CPU: at least what was in the fullest.
    assert taken_bytes >= max(fullest) * 4096
    assert tracer.taken_bytes == 0
    assert counted.voluntary is not None
    assert counted.voluntary > 200
    found = [one.reason for one in trace.off_cpu].count("waited")
    assert found == pytest.approx(counted.voluntary, abs=3)
    assert 1 <= len(again.off_cpu) < 50
    assert again.begin_ns >= trace.end_ns


def test_nothing_stays_open() -> None:
    need("perf-self")
    before = os.listdir("/proc/self/fd")
    tracer = PerfTracer()
    assert len(os.listdir("/proc/self/fd")) > len(before)
    tracer.close()
    tracer.close()
    with pytest.raises(ValueError, match="power of two"):
        PerfTracer(ring_bytes=5000)
    assert len(os.listdir("/proc/self/fd")) == len(before)
