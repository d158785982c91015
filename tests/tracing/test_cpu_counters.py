"""What a record says of switches, waiting and interrupts: of made-up counters, and of real ones."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.tracing.counters import CounterReading, ThreadCounters, counted_between
from pytest_hwqueue.tracing.cpu_counters import (
    ENQUEUING,
    CpuCounters,
    CpuCounting,
    PerThousand,
    counters_of,
)

OWN, STREAM, OTHER = 10, 11, 12
COUNTS = st.integers(0, 10**6)


def reading(
    when_ns: int, threads: dict[int, ThreadCounters], softirqs: dict[str, int] | None = None,
    interrupts: dict[str, int] | None = None,
) -> CounterReading:  # fmt: skip
    return CounterReading(when_ns, threads, softirqs, interrupts)


def counted(before: CounterReading, after: CounterReading, launches: int) -> CpuCounters:
    names = {OWN: "MainThread", STREAM: "hwq-stream-0", OTHER: "pt_pool"}
    return counters_of(counted_between(before, after), after, names, OWN, 8, launches)


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
