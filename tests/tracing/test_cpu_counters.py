"""What /proc counts: files as kernels write them, records, and this very machine."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.tracing.cpu_counters import (
    ENQUEUING,
    CounterReading,
    CpuCounters,
    CpuCounting,
    PerThousand,
    RunDelays,
    ThreadCounters,
    counters_of,
    read_counters,
    threads_between,
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


def test_a_thread_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    task(tmp_path, 5, {"status": STATUS, "schedstat": "1 2 3"})
    task(tmp_path, 6, {})
    assert set(read_counters(tmp_path).threads) == {5}


EACH = st.builds(
    ThreadCounters,
    *[st.one_of(st.none(), st.integers(0, 10**9)) for _ in range(4)],
)


@given(EACH, EACH)
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
    counted = threads_between(reading(0, {1: first}), reading(0, {1: later}))[1]
    for field in ("voluntary", "involuntary", "on_cpu_ns", "run_delay_ns"):
        known = getattr(first, field) is not None and getattr(more, field) is not None
        assert getattr(counted, field) == (getattr(more, field) if known else None)


def test_threads_that_begin_and_end_in_between() -> None:
    old, new = ThreadCounters(5, 6, 70, 8), ThreadCounters(1, 2, 3, 4)
    counted = threads_between(
        reading(0, {1: old, 2: old, 3: old}), reading(0, {1: old, 3: new, 4: new})
    )
    # The number 3 was given to another thread: it has run less than the first had.
    assert counted == {1: ThreadCounters(0, 0, 0, 0), 3: new, 4: new}


OWN, STREAM, OTHER = 10, 11, 12
COUNTS = st.integers(0, 10**6)


def reading(
    when_ns: int, threads: dict[int, ThreadCounters], softirqs: dict[str, int] | None = None,
    interrupts: dict[str, int] | None = None,
) -> CounterReading:  # fmt: skip
    return CounterReading(when_ns, threads, softirqs, interrupts)


def counted(before: CounterReading, after: CounterReading, launches: int) -> CpuCounters:
    names = {OWN: "MainThread", STREAM: "hwq-stream-0", OTHER: "pt_pool"}
    return counters_of(before, after, names, OWN, 8, launches)


Counts = tuple[int, int, int, int]


def threads(own: Counts, stream: Counts) -> dict[int, ThreadCounters]:
    return {OWN: ThreadCounters(*own), STREAM: ThreadCounters(*stream)}


def test_threads_are_named_and_the_idle_only_counted() -> None:
    idle = {OTHER: ThreadCounters(5, 5, 5, 5)}
    before = reading(0, {**threads((1, 1, 10**9, 10**9), (0, 0, 0, 0)), **idle, 99: idle[OTHER]})
    after = reading(
        2 * 10**9, {**threads((3, 2, 2 * 10**9, 10**9 + 10**7), (4, 0, 10**9, 10**8)), **idle}
    )
    found = counted(before, after, 500)
    assert [(each.name, each.voluntary, each.involuntary) for each in found.threads] == [
        (ENQUEUING, 2, 1), ("hwq-stream-0", 4, 0),
    ]  # fmt: skip
    assert (found.idle_threads, found.ended_threads) == (1, 1)
    assert (found.voluntary, found.involuntary, found.on_cpu_s) == (6, 1, 2.0)
    assert found.run_delay_s == pytest.approx(0.11)
    waited = found.waited_most()
    assert waited is not None
    assert waited[0] == "hwq-stream-0"
    assert waited[1] == pytest.approx(0.05)
    rates = found.per_1000_launches
    assert rates is not None
    assert (rates.voluntary, rates.involuntary) == (12, 2)
    assert rates.run_delay_us == pytest.approx(220_000)
    assert set(found.missing) == {"system_softirqs", "system_interrupts", "kernels"}
    assert "kernels" not in found.with_kernels(7).missing


def test_what_the_kernel_does_not_count_is_null_with_the_reason() -> None:
    sandbox = threads((0, 0, 0, 0), (0, 0, 0, 0))
    found = counted(reading(0, sandbox), reading(10**9, sandbox), 10)
    nulls = ("voluntary", "involuntary", "on_cpu_s", "run_delay_s", "system_softirqs",
             "system_interrupts")  # fmt: skip
    assert [getattr(found, name) for name in nulls] == [None] * len(nulls)
    assert set(found.missing) == {*nulls, "kernels"}
    assert found.waited_most() is None
    assert found.per_1000_launches == PerThousand(
        voluntary=None, involuntary=None, run_delay_us=None,
        system_softirqs=None, system_interrupts=None,
    )  # fmt: skip


def test_no_launch_has_no_rate() -> None:
    some = threads((1, 1, 1, 1), (1, 1, 1, 1))
    found = counted(reading(0, some), reading(10**9, some), 0)
    assert found.per_1000_launches is None
    assert "per_1000_launches" in found.missing
    assert found.with_kernels(0).per_1000_kernels is None


@given(switches=COUNTS, timer=COUNTS, launches=st.integers(1, 10**5), kernels=st.integers(1, 1000))
def test_rates_and_counts_agree(switches: int, timer: int, launches: int, kernels: int) -> None:
    before = reading(0, threads((1, 0, 1, 0), (0, 0, 1, 0)), {"TIMER": 5}, {"LOC": 1})
    after = reading(
        10**9, threads((1 + switches, 0, 5, 0), (0, 0, 1, 0)), {"TIMER": 5 + timer}, {"LOC": 1}
    )
    found = counted(before, after, launches).with_kernels(kernels)
    launch_rates, kernel_rates = found.per_1000_launches, found.per_1000_kernels
    assert launch_rates is not None
    assert kernel_rates is not None
    assert (launch_rates.voluntary or 0) * launches / 1000 == pytest.approx(switches)
    assert found.kernels == 8 * kernels
    assert (kernel_rates.voluntary or 0) * found.kernels / 1000 == pytest.approx(switches)
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


def test_a_thread_that_shares_its_core_waits(tmp_path: Path) -> None:
    tid = threading.get_native_id()
    if not Path(f"/proc/self/task/{tid}/schedstat").exists():
        pytest.skip("this kernel keeps no times on the run queue")
    delays = RunDelays([tid, 2**30])
    assert set(delays.threads) == {tid}
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {core})
        busy(5)
        os._exit(0)
    try:
        os.sched_setaffinity(0, {core})
        delays.step()
        busy(0.3)
        waited = delays.step()
    finally:
        os.sched_setaffinity(0, allowed)
        os.kill(child, 9)
        os.waitpid(child, 0)
        delays.close()
    # Half of the time, if nobody else is there.
    assert 20_000_000 < waited[tid] < 300_000_000
    delays.close()
    assert not delays.threads


def test_a_thread_that_ends_is_left_out() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    own = threading.get_native_id()
    delays = RunDelays([own, thread.native_id])
    if not delays.threads:
        pytest.skip("this kernel keeps no times on the run queue")
    end.set()
    thread.join()
    # It is gone from Python's view before it is from the kernel's.
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.001)
    assert thread.native_id not in delays.step()
    assert set(delays.threads) == {own}
    delays.close()
