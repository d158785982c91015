"""Real switches and interrupts, planted and counted; skipped where the kernel does not allow it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pytest_hwqueue.data.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.engine.causes.perf_events import OWN_THREAD, PerfTracer, with_culprits
from pytest_hwqueue.parts.devices.cpu_counters import read_counters, threads_between
from tests.conftest import slow

from .victims import need, victim

MS = 1_000_000
CPU = min(os.sched_getaffinity(0))
both_rights = pytest.mark.parametrize("rights", ["switches", "tracepoints"])
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


@contextmanager
def busy_neighbour(*, realtime: bool = False) -> Iterator[None]:
    """A process that computes on the CPU, of our own session as real neighbours are.

    One of a real-time class computes half of the time, and whoever is there makes way for it.
    """
    command = ["taskset", "-c", str(CPU), sys.executable, "-c", _NEIGHBOUR, str(int(realtime))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                pytest.skip("there is no right to a real-time class")
            yield
        finally:
            process.kill()


@both_rights
def test_switches_are_as_many_as_proc_counts_and_follow_each_other(rights: str) -> None:
    need(rights)
    # Nobody empties the rings meanwhile, and a busy machine's switches are all in them.
    with victim("doze_in_threads", rights, 0.4, ring_bytes=1 << 24) as running:
        found = running.report()
    assert (found["interrupts"] is None) == (rights == "switches")
    assert found["lost"] == 0
    # Before, after: when the counters began to be read, and when they had been.
    before, read_before, after, read_after = found["reading_ns"]
    for tid, counts in found["proc"].items():
        for reason, counted in zip(("waited", "preempted"), counts, strict=True):
            own = [one for one in found["off_cpu"] if one.tid == int(tid)]
            at = [one.start_ns for one in own if one.reason == reason]
            at_least = sum(read_before <= start <= after for start in at)
            at_most = sum(before <= start <= read_after for start in at)
            assert at_least <= counted <= at_most
    # Two threads have ended, and mostly only the trace knows them (one that was joined may be in
    # /proc for a moment yet). How often they sleep depends on how busy the machine is.
    threads = {one.tid for one in found["off_cpu"]}
    assert len(threads - {running.process.pid}) == 2
    for tid in threads:
        last = found["begin_ns"]
        own = [one for one in found["off_cpu"] if one.tid == tid]
        assert sum(one.reason == "waited" for one in own) >= 0.9 * found["sleeps"][str(tid)] > 0
        for one in own:
            assert last <= one.start_ns <= one.end_ns <= found["end_ns"]
            last = one.end_ns


def assert_named_and_nested(interrupts: list[Interrupt]) -> None:
    # Computing has ticks, whatever else.
    assert {one.name for one in interrupts} & {"local_timer", "arch_timer"}
    open_until: dict[int, list[int]] = {}
    for one in interrupts:
        assert one.start_ns <= one.end_ns
        outer = open_until.setdefault(one.cpu, [])
        while outer and outer[-1] <= one.start_ns:
            outer.pop()
        assert not outer or one.end_ns <= outer[-1]
        outer.append(one.end_ns)


@both_rights
def test_a_stop_is_found_and_without_tracepoints_looks_like_a_wait(rights: str) -> None:
    need(rights)
    with victim("spin", rights, 0.6) as running:
        time.sleep(0.1)
        running.process.send_signal(signal.SIGSTOP)
        stopped_ns = time.monotonic_ns()
        time.sleep(0.2)
        continued_ns = time.monotonic_ns()
        running.process.send_signal(signal.SIGCONT)
        found = running.report()
    # The signal may take effect a moment after it was sent, never before. On a busy machine another
    # wait may be longer.
    (stop,) = (one for one in found["off_cpu"] if one.start_ns < continued_ns <= one.end_ns)
    assert stop.end_ns > stopped_ns
    assert stop.end_ns - stop.start_ns >= 100 * MS
    if rights == "switches":
        assert (stop.reason, stop.next_comm, found["interrupts"]) == ("waited", None, None)
        return
    assert [one for one in found["off_cpu"] if one.reason == "stopped"] == [stop]
    assert stop.withheld == (stop.start_ns, stop.end_ns)
    assert_named_and_nested(found["interrupts"])


@pytest.mark.parametrize("rights", [slow("switches"), "tracepoints"])
def test_a_busy_neighbour_on_the_same_cpu_preempts(rights: str) -> None:
    need(rights)
    # Not only one of many that compute on a busy machine, where the rights allow it.
    realtime = rights == "tracepoints"
    with busy_neighbour(realtime=realtime), victim("spin", rights, 1.2, cpu=CPU) as running:
        found = running.report()
    preempted = [one for one in found["off_cpu"] if one.reason == "preempted"]
    lost_ns = sum(one.end_ns - one.start_ns for one in preempted)
    assert lost_ns >= 0.2 * (found["end_ns"] - found["begin_ns"])
    assert {one.cpu for one in preempted} == {CPU}
    # It wakes some 50 times a second, and preempts the victim where that has the CPU then: on a
    # busy machine it often has not.
    on_s = (found["end_ns"] - found["begin_ns"]) / 1e9
    on_s -= sum(one.end_ns - one.start_ns for one in found["off_cpu"]) / 1e9
    named = sum(one.next_comm == "neighbour" for one in preempted)
    assert not realtime or named >= max(1, int(10 * on_s))


def test_a_thread_of_the_same_process_that_preempts_is_called_so() -> None:
    need("tracepoints")
    with victim("compete", "tracepoints", 0.5, cpu=CPU) as running:
        found = running.report()
    main = running.process.pid
    by = [one for one in found["off_cpu"] if one.reason == "preempted" and one.tid == main]
    # How often depends on who else wants that CPU.
    assert any(one.next_comm == OWN_THREAD for one in by)


def test_wakings_come_before_running_on() -> None:
    need("tracepoints")
    # Not every kernel tells of wake-ups in the time of an idle CPU, which delay nobody.
    with busy_neighbour(), victim("doze", "tracepoints", 0.5, cpu=CPU) as running:
        found = running.report()
    waits = [one for one in found["off_cpu"] if one.reason == "waited"]
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        assert {one.runnable_ns for one in waits} == {None}
        pytest.skip("in a namespace of process numbers, wake-ups cannot be told")
    woken = [one for one in waits if one.runnable_ns is not None]
    assert len(woken) >= 0.9 * len(waits)
    assert all(one.start_ns <= one.runnable_ns <= one.end_ns for one in woken)


# Of 4096 bytes, by switches of two records of 32 bytes and more.
_SURELY_FULL = 100


def test_what_does_not_fit_is_counted() -> None:
    need("switches")
    with victim("doze", "switches", 0.5, ring_bytes=4096) as running:
        found = running.report()
    ((voluntary, involuntary),) = found["proc"].values()
    seen = len(found["off_cpu"])
    if voluntary + involuntary < _SURELY_FULL:
        pytest.skip(f"busy machine: {voluntary + involuntary} switches do not fill the ring")
    assert seen < voluntary + involuntary
    # Two records for each switch: one out, one in.
    missing = 2 * (voluntary + involuntary - seen)
    assert found["lost"] == pytest.approx(missing, rel=0.02, abs=8)


def test_draining_in_between_loses_nothing_and_nothing_stays_open() -> None:
    need("switches")
    open_before = os.listdir("/proc/self/fd")
    tracer = PerfTracer([os.getpid()], ring_bytes=4096)
    tracer.start()
    before = read_counters()
    fullest = []
    for _ in range(300):
        time.sleep(1e-4)
        fullest.append(tracer.drain())
    taken_bytes = tracer.taken_bytes
    counted = threads_between(before, read_counters())[os.getpid()].voluntary
    trace = tracer.stop()
    tracer.start()
    time.sleep(1e-3)
    again = tracer.stop()
    assert trace.lost == 0
    # Of one ring, and on whichever CPU: at least what was in the fullest.
    assert 0 < max(fullest) < 1
    assert taken_bytes >= max(fullest) * 4096
    assert tracer.taken_bytes == 0
    assert counted is not None
    assert counted > 200
    assert [one.reason for one in trace.off_cpu].count("waited") == pytest.approx(counted, abs=3)
    assert 1 <= len(again.off_cpu) < 50
    assert again.begin_ns >= trace.end_ns
    assert len(os.listdir("/proc/self/fd")) > len(open_before)
    tracer.close()
    tracer.close()
    with pytest.raises(ValueError, match="power of two"):
        PerfTracer(ring_bytes=5000)
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


_STREAM, _MAIN, _HOG, _IDLE = 11, 10, 99, 0
_PREEMPTED = OffCpu(_STREAM, 0, 0, 1000, 5000, "preempted", 1000, _MAIN, "python")
_MAIN_WAITS = OffCpu(_MAIN, 0, 0, 1050, 6000, "waited", 5900, _HOG, "stress-ng")
_WOKEN_LATE = OffCpu(_STREAM, 0, 1, 1000, 5000, "waited", 3000, _IDLE, "swapper/0", _HOG, "fio")
_UNNAMED = OffCpu(_STREAM, 0, 0, 1000, 5000, "preempted", 1000)


@pytest.mark.parametrize(("one", "other", "changed"), [
    # Behind one's own thread is who took over from it, unless that thread ran on.
    (_PREEMPTED, _MAIN_WAITS, {"next_tid": _HOG, "next_comm": "stress-ng"}),
    (_PREEMPTED, replace(_MAIN_WAITS, start_ns=4900), {}),
    # It wanted the CPU from 5900 on, when the stream had it again.
    (_MAIN_WAITS, _PREEMPTED, {"before_tid": _STREAM}),
    # Whoever made room is named where no own thread ran, and without names nothing is made up.
    (_WOKEN_LATE, OffCpu(_MAIN, 1, 1, 3500, 9000, "waited", 8000, _IDLE, "swapper/1"), {}),
    (_UNNAMED, _UNNAMED, {}),
    (replace(_UNNAMED, reason="stopped", next_tid=_HOG), _UNNAMED, {}),
])  # fmt: skip
def test_who_ran_while_a_thread_wanted_the_cpu(
    one: OffCpu, other: OffCpu, changed: dict[str, object]
) -> None:
    assert with_culprits([one, other])[0] == replace(one, **changed)  # type: ignore[arg-type]
