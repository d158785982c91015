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

from pytest_hwqueue.metrics.cpu_events import OffCpu
from pytest_hwqueue.tracing.cpu_counters import read_counters, threads_between
from pytest_hwqueue.tracing.perf_events import OWN_THREAD, PerfTracer, with_culprits

from .victims import need, victim

MS = 1_000_000
RIGHTS = ("switches", "tracepoints")


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


@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("job", ["doze", "doze_in_threads"])
def test_switches_are_as_many_as_proc_counts(rights: str, job: str) -> None:
    need(rights)
    with victim(job, rights, 1.0) as running:
        found = running.report()
    assert (found["interrupts"] is None) == (rights == "switches")
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


@pytest.mark.parametrize("rights", RIGHTS)
def test_times_off_the_cpu_follow_each_other_inside_the_trace(rights: str) -> None:
    need(rights)
    with victim("doze", rights, 0.3) as running:
        found = running.report()
    last = found["begin_ns"]
    for one in found["off_cpu"]:
        assert last <= one.start_ns <= one.end_ns <= found["end_ns"]
        last = one.end_ns


def test_a_stopped_process_is_found_stopped() -> None:
    need("tracepoints")
    with victim("spin", "tracepoints", 0.6) as running:
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
    need("switches")
    with victim("spin", "switches", 0.5) as running:
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        running.process.send_signal(signal.SIGCONT)
        found = running.report()
    longest = max(found["off_cpu"], key=lambda one: one.end_ns - one.start_ns)
    assert longest.end_ns - longest.start_ns >= 100 * MS
    assert (longest.reason, longest.next_comm, found["interrupts"]) == ("waited", None, None)


@pytest.mark.parametrize("rights", RIGHTS)
def test_a_busy_neighbour_on_the_same_cpu_preempts(rights: str) -> None:
    need(rights)
    cpu = min(os.sched_getaffinity(0))
    # Not only one of many that compute on a busy machine, where the rights allow it.
    realtime = rights == "tracepoints"
    with busy_neighbour(cpu, realtime=realtime), victim("spin", rights, 1.0, cpu=cpu) as running:
        found = running.report()
    preempted = [one for one in found["off_cpu"] if one.reason == "preempted"]
    lost_ns = sum(one.end_ns - one.start_ns for one in preempted)
    assert lost_ns >= 0.2 * (found["end_ns"] - found["begin_ns"])
    assert {one.cpu for one in preempted} == {cpu}
    if rights == "tracepoints":
        # In 1 s it wakes some 50 times; other neighbours of the machine may come first sometimes.
        assert sum(one.next_comm == "neighbour" for one in preempted) >= 5
        assert found["interrupts"]


def test_a_thread_of_the_same_process_that_preempts_is_called_so() -> None:
    need("tracepoints")
    cpu = min(os.sched_getaffinity(0))
    with victim("compete", "tracepoints", 1.0, cpu=cpu) as running:
        found = running.report()
    main = running.process.pid
    by = [one for one in found["off_cpu"] if one.reason == "preempted" and one.tid == main]
    # How often depends on who else wants that CPU.
    assert any(one.next_comm == OWN_THREAD for one in by)


def test_wakings_come_before_running_on() -> None:
    need("tracepoints")
    cpu = min(os.sched_getaffinity(0))
    # Not every kernel tells of wake-ups in the time of an idle CPU, which delay nobody.
    with busy_neighbour(cpu), victim("doze", "tracepoints", 0.5, cpu=cpu) as running:
        found = running.report()
    waits = [one for one in found["off_cpu"] if one.reason == "waited"]
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        assert {one.runnable_ns for one in waits} == {None}
        pytest.skip("in a namespace of process numbers, wake-ups cannot be told")
    woken = [one for one in waits if one.runnable_ns is not None]
    assert len(woken) >= 0.9 * len(waits)
    assert all(one.start_ns <= one.runnable_ns <= one.end_ns for one in woken)


def test_interrupts_have_names_and_lengths_and_nest() -> None:
    need("tracepoints")
    with victim("spin", "tracepoints", 1.0) as running:
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
    need("switches")
    with victim("doze", "switches", 1.0, ring_bytes=4096) as running:
        found = running.report()
    ((voluntary, involuntary),) = found["proc"].values()
    seen = len(found["off_cpu"])
    assert seen < voluntary + involuntary
    # Two records for each switch: one out, one in.
    missing = 2 * (voluntary + involuntary - seen)
    assert found["lost"] == pytest.approx(missing, rel=0.02, abs=8)


def test_draining_in_between_loses_nothing() -> None:
    need("switches")
    tracer = PerfTracer([os.getpid()], ring_bytes=4096)
    try:
        tracer.start()
        before = read_counters()
        fullest = []
        for _ in range(300):
            time.sleep(1e-4)
            fullest.append(tracer.drain())
        taken_bytes = tracer.taken_bytes
        counted = threads_between(before, read_counters())[os.getpid()]
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
    need("switches")
    before = os.listdir("/proc/self/fd")
    tracer = PerfTracer()
    assert len(os.listdir("/proc/self/fd")) > len(before)
    tracer.close()
    tracer.close()
    with pytest.raises(ValueError, match="power of two"):
        PerfTracer(ring_bytes=5000)
    assert len(os.listdir("/proc/self/fd")) == len(before)


_STREAM, _MAIN, _HOG, _IDLE = 11, 10, 99, 0


def preempted(start: int, end: int, next_tid: int, next_comm: str) -> OffCpu:
    return OffCpu(_STREAM, 0, 0, start, end, "preempted", start, next_tid, next_comm)


def test_behind_ones_own_thread_is_who_took_over_from_it() -> None:
    stream = preempted(1000, 5000, _MAIN, "python")
    main = OffCpu(_MAIN, 0, 0, 1050, 6000, "waited", 5900, _HOG, "stress-ng")
    found = with_culprits([stream, main])
    assert (found[0].next_tid, found[0].next_comm) == (_HOG, "stress-ng")
    # It wanted the CPU from 5900 on, when the stream had it again.
    assert found[1].before_tid == _STREAM


def test_an_own_thread_that_ran_on_is_the_culprit_itself() -> None:
    stream = preempted(1000, 5000, _MAIN, "python")
    main = OffCpu(_MAIN, 0, 0, 4900, 6000, "waited", 5900, _HOG, "stress-ng")
    assert with_culprits([stream, main])[0].next_tid == _MAIN


def test_whoever_made_room_is_named_where_no_own_thread_ran() -> None:
    late = OffCpu(
        _STREAM, 0, 1, 1000, 5000, "waited", 3000, _IDLE, "swapper/0", _HOG, "fio"
    )  # fmt: skip
    other = OffCpu(_MAIN, 1, 1, 1000, 9000, "waited", 8000, _IDLE, "swapper/1")
    found = with_culprits([late, other])
    assert (found[0].before_tid, found[0].before_comm) == (_HOG, "fio")


def test_without_names_nothing_is_made_up() -> None:
    away = OffCpu(_STREAM, 0, 0, 1000, 5000, "preempted", 1000)
    assert with_culprits([away]) == [away]
    stopped = OffCpu(_STREAM, 0, 0, 1000, 5000, "stopped", None, _HOG, "fio")
    assert with_culprits([stopped]) == [stopped]
