"""Counters from /proc: differences over an interval, absent files, and this machine's own."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.tracing.counters import (
    CounterReading,
    ThreadCounters,
    counted_between,
    read_counters,
)

INTERRUPTS = """\
           CPU0       CPU1
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 36:          0       2594  PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
LOC:       5010       6333   Local timer interrupts
ERR:          7
"""
SOFTIRQS = """\
                    CPU0       CPU1
          HI:          0          0
         RCU:       1459       1934
"""
STATUS = "Name:\tpython\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"


def task(proc: Path, tid: int, files: dict[str, str]) -> None:
    folder = proc / "self" / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_everything_is_read(tmp_path: Path) -> None:
    task(tmp_path, 5, {"status": STATUS, "schedstat": "900 80 7\n"})
    (tmp_path / "softirqs").write_text(SOFTIRQS)
    (tmp_path / "interrupts").write_text(INTERRUPTS)
    reading = read_counters(tmp_path)
    assert reading.threads == {5: ThreadCounters(12, 3, 900, 80)}
    assert reading.system_softirqs == {"HI": 0, "RCU": 3393}
    assert reading.system_interrupts == {
        "24 ACPI:Ged": 1,
        "36 virtio1-req.0": 2594,
        "LOC Local timer interrupts": 11343,
        "ERR": 7,
    }


def test_what_is_absent_is_none_and_never_0(tmp_path: Path) -> None:
    task(tmp_path, 5, {"status": "Name:\tpython\n"})
    reading = read_counters(tmp_path)
    assert reading.threads == {5: ThreadCounters(None, None, None, None)}
    assert (reading.system_softirqs, reading.system_interrupts) == (None, None)
    rates = counted_between(reading, reading).per_1000(10)
    assert rates.launches == 10
    assert (rates.voluntary, rates.involuntary, rates.run_delay_us) == (None, None, None)
    assert (rates.system_softirqs, rates.system_interrupts) == (None, None)


def test_a_thread_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    task(tmp_path, 5, {"status": STATUS, "schedstat": "1 2 3"})
    task(tmp_path, 6, {})
    assert set(read_counters(tmp_path).threads) == {5}


def reading_of(threads: dict[int, ThreadCounters], interrupts: dict[str, int]) -> CounterReading:
    return CounterReading(0, threads, {}, interrupts)


COUNTS = st.builds(
    ThreadCounters,
    *[st.one_of(st.none(), st.integers(0, 10**9)) for _ in range(4)],
)


@given(COUNTS, COUNTS)
def test_differences_add_up(first: ThreadCounters, more: ThreadCounters) -> None:
    later = ThreadCounters(
        *(
            None if one is None or other is None else one + other
            for one, other in (
                (first.voluntary, more.voluntary),
                (first.involuntary, more.involuntary),
                (first.on_cpu_ns, more.on_cpu_ns),
                (first.run_delay_ns, more.run_delay_ns),
            )
        )
    )
    counted = counted_between(reading_of({1: first}, {}), reading_of({1: later}, {})).threads[1]
    for field in ("voluntary", "involuntary", "on_cpu_ns", "run_delay_ns"):
        known = getattr(first, field) is not None and getattr(more, field) is not None
        assert getattr(counted, field) == (getattr(more, field) if known else None)


def test_threads_that_begin_and_end_in_between() -> None:
    old, new = ThreadCounters(5, 6, 70, 8), ThreadCounters(1, 2, 3, 4)
    before = reading_of({1: old, 2: old, 3: old}, {})
    after = reading_of({1: old, 3: new, 4: new}, {})
    counted = counted_between(before, after)
    # The number 3 was given to another thread: it has run less than the first had.
    assert counted.threads == {1: ThreadCounters(0, 0, 0, 0), 3: new, 4: new}
    assert counted.ended == (2,)
    assert counted.total("involuntary") == 4


def test_rates_for_1000_launches() -> None:
    before = reading_of({1: ThreadCounters(0, 0, 0, 0)}, {"LOC": 5, "RES": 9})
    after = reading_of({1: ThreadCounters(10, 4, 9, 50_000)}, {"LOC": 25, "RES": 9, "36 disk": 2})
    rates = counted_between(before, after).per_1000(2000)
    assert (rates.voluntary, rates.involuntary, rates.run_delay_us) == (5.0, 2.0, 25.0)
    assert rates.system_interrupts == {"LOC": 10.0, "36 disk": 1.0}
    with pytest.raises(ValueError, match="at least 1 launch"):
        counted_between(before, after).per_1000(0)


def test_this_machine_counts_the_sleeps_of_each_thread() -> None:
    ready, done = threading.Event(), threading.Event()
    tids = []

    def doze() -> None:
        tids.append(threading.get_native_id())
        ready.set()
        for _ in range(100):
            time.sleep(1e-4)
        done.wait()

    before = read_counters()
    thread = threading.Thread(target=doze)
    thread.start()
    ready.wait()
    time.sleep(0.2)
    counted = counted_between(before, read_counters())
    done.set()
    thread.join()
    voluntary = counted.threads[tids[0]].voluntary
    if voluntary is None:
        pytest.skip("this kernel shows no switches of threads")
    assert voluntary >= 90
    assert counted.duration_ns >= 2 * 10**8
