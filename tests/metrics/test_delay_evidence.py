"""Evidence from events of the CPU and the device."""

from __future__ import annotations

from pytest_hwqueue.metrics.attribution import (
    DeviceWork,
    Evidence,
    device_busy,
    device_evidence,
    device_work,
    interrupt_evidence,
    off_cpu_evidence,
)
from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.metrics.timeline import Kernel, Timeline


def test_a_preempted_thread_is_without_the_cpu_all_the_while() -> None:
    found = off_cpu_evidence([OffCpu(1, 0, 0, 10, 30, "preempted", 10, 99, "stress-ng-cpu")])
    assert found == [Evidence("descheduled", 10, 30, "gave way to stress-ng-cpu")]


def test_a_stopped_thread_too() -> None:
    found = off_cpu_evidence([OffCpu(1, 0, 0, 10, 30, "stopped", None, 0, "swapper/0")])
    assert found == [Evidence("descheduled", 10, 30, "stopped by a signal")]


def test_a_stopped_thread_that_may_go_on_lacks_a_cpu() -> None:
    stopped = OffCpu(1, 0, 0, 10, 30, "stopped", 25, 0, "swapper/0", 99, "stress-ng-cpu")
    assert off_cpu_evidence([stopped]) == [
        Evidence("descheduled", 10, 25, "stopped by a signal"),
        Evidence("descheduled", 25, 30, "had no CPU when it was woken: stress-ng-cpu ran on it"),
    ]


def test_a_waiting_thread_only_from_its_waking_on() -> None:
    waits = [OffCpu(1, 0, 0, 10, 30, "waited", 25), OffCpu(1, 0, 0, 50, 60, "waited", None)]
    found = off_cpu_evidence(waits)
    assert found == [Evidence("descheduled", 25, 30, "had no CPU when it was woken")]


def test_interrupts_are_named_by_kind() -> None:
    found = interrupt_evidence([Interrupt(1, 0, 5, 9, "softirq", 3, "NET_RX")])
    assert found == [Evidence("interrupted", 5, 9, "softirq NET_RX")]


def test_kernels_of_a_timeline_are_ready_when_nothing_of_their_own_holds_them_up() -> None:
    timeline = Timeline(
        (
            Kernel(0, 0, "gemm", None, 5, 10, 30),
            Kernel(0, 1, "gemm", None, 8, 40, 50),
            Kernel(1, 2, "copy", None, 9, 60, 70, waits_for=(1,)),
        ),
        streams=2,
        released_ns=None,
    )
    assert device_work(timeline, "low", {0: 7, 1: 7}) == [
        DeviceWork("low", 0, "gemm", 5, 10, 30, 7, 5),
        DeviceWork("low", 0, "gemm", 30, 40, 50, 7, 8),
        DeviceWork("low", 1, "copy", 50, 60, 70, None, 9),
    ]


def high(ready: int, start: int, end: int, request: int, name: str = "gemm") -> DeviceWork:
    return DeviceWork("high", 0, name, ready, start, end, request)


def test_a_kernel_is_queued_behind_those_that_ran_while_it_was_ready() -> None:
    work = [
        high(100, 150, 160, 1),
        DeviceWork("low", 7, "conv2d", 0, 50, 140, None),
        DeviceWork("high", 3, "copy", 0, 130, 145, None),
        # Its own stream's kernel, and one that ran before it was ready, do not hold it up.
        DeviceWork("high", 0, "gemm", 80, 80, 90, 0),
        DeviceWork("low", 7, "conv2d", 0, 10, 40, None),
    ]
    queued = [one for one in device_evidence(work, "high") if one.cause == "queued"]
    assert sorted(queued, key=lambda one: one.start_ns) == [
        Evidence("queued", 100, 140, "low's conv2d on stream 7"),
        Evidence("queued", 130, 145, "its own copy on stream 3"),
    ]
    assert device_busy(work, "low") == [(0, 140)]


def test_a_kernel_slowed_by_another_tenant_owns_its_usual_time_only() -> None:
    work = [high(at, at, at + 10, at) for at in (0, 100, 200, 300)]
    work.append(high(400, 400, 450, 400))
    work.append(DeviceWork("low", 7, "conv2d", 0, 405, 460, None))
    found = [one for one in device_evidence(work, "high") if one.end_ns > 400]
    assert found == [
        Evidence("own work", 400, 410, "gemm", 400),
        Evidence("queued", 410, 450, "low's conv2d on stream 7"),
    ]


def test_a_larger_kernel_of_another_name_is_own_work() -> None:
    work = [high(at, at, at + 10, at) for at in (0, 100, 200)] + [high(400, 400, 450, 4, "big")]
    found = device_evidence(work, "high")
    assert found[-1] == Evidence("own work", 400, 450, "big", 4)
