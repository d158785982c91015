"""What /proc counts: files as kernels write them, records, and this very machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.records.counters import CpuCounters
from pytest_hwqueue.parts.devices.cpu_counters import (
    ENQUEUING,
    CounterReading,
    CpuCounting,
    RunDelays,
    ThreadCounters,
    counters_of,
    read_counters,
    threads_between,
)

OWN, STREAM, OTHER, ENDED = 10, 11, 12, 99
FIGURES = ("voluntary", "involuntary", "on_cpu_s", "run_delay_s", "system_softirqs",
           "system_interrupts")  # fmt: skip
INTERRUPTS = """\
           CPU0       CPU1
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 36:          0       2594  PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
LOC:       5010       6333   Local timer interrupts
ERR:          7
"""
STATUS = "Name:\tpython\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"
needs_times = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(),
    reason="this kernel keeps no times on the run queue",
)


def test_everything_is_read_and_what_is_absent_is_none_and_never_0(tmp_path: Path) -> None:
    # The last thread has ended while it was read.
    for tid, files in (
        (5, {"status": STATUS, "schedstat": "900 80 7\n"}), (6, {"status": "Name:\tpython\n"}),
        (7, {}),
    ):  # fmt: skip
        folder = tmp_path / "self" / "task" / str(tid)
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    bare = read_counters(tmp_path)
    assert bare.threads == {
        5: ThreadCounters(12, 3, 900, 80), 6: ThreadCounters(None, None, None, None),
    }  # fmt: skip
    assert (bare.system_softirqs, bare.system_interrupts) == (None, None)
    (tmp_path / "softirqs").write_text("     CPU0    CPU1\n HI:    0    0\nRCU:    1459    1934\n")
    (tmp_path / "interrupts").write_text(INTERRUPTS)
    full = read_counters(tmp_path)
    assert full.system_softirqs == {"HI": 0, "RCU": 3393}
    assert full.system_interrupts == {
        "24 ACPI:Ged": 1, "36 virtio1-req.0": 2594, "LOC Local timer interrupts": 11343, "ERR": 7,
    }  # fmt: skip


def reading(
    when_ns: int, threads: Mapping[int, tuple[int | None, ...]], timer: int | None = None
) -> CounterReading:
    made = {tid: ThreadCounters(*each) for tid, each in threads.items()}
    if timer is None:
        return CounterReading(when_ns, made, None, None)
    return CounterReading(when_ns, made, {"TIMER": timer}, {"LOC": 1})


def counted(before: CounterReading, after: CounterReading, launches: int) -> CpuCounters:
    names = {OWN: "MainThread", STREAM: "hwq-stream-0", OTHER: "pt_pool"}
    return counters_of(before, after, names, OWN, 8, launches)


EACH = st.tuples(*[st.none() | st.integers(0, 10**9)] * 4)


@given(EACH, EACH)
def test_what_was_counted_in_between_is_unknown_where_either_end_is(
    first: tuple[int | None, ...], more: tuple[int | None, ...]
) -> None:
    pairs = list(zip(first, more, strict=True))
    later = tuple(None if None in pair else sum(map(int, pair)) for pair in pairs)  # type: ignore[arg-type]
    expected = tuple(None if None in pair else pair[1] for pair in pairs)
    found = threads_between(reading(0, {1: first}), reading(0, {1: later}))
    assert found[1] == expected


def test_threads_that_begin_and_end_in_between() -> None:
    old, new = (5, 6, 70, 8), (1, 2, 3, 4)
    before, after = {1: old, 2: old, 3: old}, {1: old, 3: new, 4: new}
    found = threads_between(reading(0, before), reading(0, after))
    # The number 3 was given to another thread: it has run less than the first had.
    assert found == {1: (0,) * 4, 3: new, 4: new}


def test_threads_are_named_and_the_idle_only_counted() -> None:
    idle = (5, 5, 5, 5)
    before = {OWN: (1, 1, 10**9, 10**9), STREAM: (0, 0, 0, 0), OTHER: idle, ENDED: idle}
    after = {OWN: (3, 2, 2 * 10**9, 10**9 + 10**7), STREAM: (4, 0, 10**9, 10**8), OTHER: idle}
    found = counted(reading(0, before), reading(2 * 10**9, after), 500)
    assert [(each.name, each.voluntary, each.involuntary) for each in found.threads] == [
        (ENQUEUING, 2, 1), ("hwq-stream-0", 4, 0),
    ]  # fmt: skip
    assert (found.idle_threads, found.ended_threads) == (1, 1)
    assert (found.voluntary, found.involuntary, found.on_cpu_s) == (6, 1, 2.0)
    assert found.run_delay_s == pytest.approx(0.11)
    assert found.waited_most() == ("hwq-stream-0", 0.05)
    rates = found.per_1000_launches
    assert rates is not None
    assert (rates.voluntary, rates.involuntary) == (12, 2)
    assert rates.run_delay_us == pytest.approx(220_000)
    assert set(found.missing) == {"system_softirqs", "system_interrupts", "kernels"}


def test_what_the_kernel_does_not_count_is_null_with_the_reason() -> None:
    sandbox = {OWN: (0, 0, 0, 0), STREAM: (0, 0, 0, 0)}
    found = counted(reading(0, sandbox), reading(10**9, sandbox), 10)
    assert [getattr(found, name) for name in FIGURES] == [None] * len(FIGURES)
    assert set(found.missing) == {*FIGURES, "kernels"}
    assert found.waited_most() is None
    rates = found.per_1000_launches
    assert rates is not None
    assert set(rates.model_dump().values()) == {None}
    unlaunched = counted(reading(0, sandbox), reading(10**9, sandbox), 0)
    assert unlaunched.per_1000_launches is None
    assert "per_1000_launches" in unlaunched.missing
    assert unlaunched.with_kernels(0).per_1000_kernels is None


@given(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 1000)
)  # fmt: skip
def test_rates_and_counts_agree(switches: int, timer: int, launches: int, kernels: int) -> None:
    before = reading(0, {OWN: (1, 0, 1, 0)}, 5)
    after = reading(10**9, {OWN: (1 + switches, 0, 5, 0)}, 5 + timer)
    found = counted(before, after, launches).with_kernels(kernels)
    launch_rates, kernel_rates = found.per_1000_launches, found.per_1000_kernels
    assert launch_rates is not None
    assert kernel_rates is not None
    assert (launch_rates.voluntary or 0) * launches / 1000 == pytest.approx(switches)
    assert (found.kernels, "kernels" in found.missing) == (8 * kernels, False)
    assert (kernel_rates.voluntary or 0) * 8 * kernels / 1000 == pytest.approx(switches)
    expected = {"TIMER": timer * 1000 / (8 * kernels)} if timer else {}
    assert kernel_rates.system_softirqs == pytest.approx(expected)
    assert kernel_rates.system_interrupts == {}
    assert CpuCounters.model_validate_json(found.model_dump_json()) == found


def test_this_machine_is_counted_from_the_beginning_to_the_end() -> None:
    launches = 0
    stop = threading.Event()
    stream = threading.Thread(target=stop.wait, name="hwq-stream-7")
    counting = CpuCounting(lambda: launches)
    counting.opened()
    stream.start()
    for _ in range(5):
        time.sleep(1e-3)
        launches += 2
    counting.closed()
    found = counting.counters(5)
    stop.set()
    stream.join()
    assert (found.iterations, found.launches) == (5, 10)
    own = next(each for each in found.threads if each.name == ENQUEUING)
    assert own.thread == threading.get_native_id()
    if own.voluntary is None:
        pytest.skip(found.missing["voluntary"])
    assert own.voluntary >= 5
    assert "hwq-stream-7" in [each.name for each in found.threads]


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@needs_times
def test_a_thread_that_shares_its_core_waits_and_one_that_ends_is_left_out() -> None:
    own, end = threading.get_native_id(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    delays = RunDelays([own, thread.native_id, 2**30])
    assert set(delays.threads) == {own, thread.native_id}
    allowed = os.sched_getaffinity(0)
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {min(allowed)})
        busy(5)
        os._exit(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        delays.step()
        began_ns = time.monotonic_ns()
        busy(0.3)
        waited = delays.step()
        gone_ns = time.monotonic_ns() - began_ns
    finally:
        os.sched_setaffinity(0, allowed)
        os.kill(child, 9)
        os.waitpid(child, 0)
    # Half of the time, if nobody else is there.
    assert 20_000_000 < waited[own] < gone_ns
    end.set()
    thread.join()
    # It is gone from Python's view before it is from the kernel's.
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.001)
    assert thread.native_id not in delays.step()
    assert set(delays.threads) == {own}
    delays.close()
    delays.close()
    assert not delays.threads
