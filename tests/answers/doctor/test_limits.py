"""Limits on the CPU: every number has its n, and every missing one its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_hwqueue.answers.doctor import limits
from pytest_hwqueue.answers.doctor.limits import DeviceLimits, DispatchDelay, counted_at_once
from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.parts.devices.host import HostDevice, HostEvent, HostPool
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.devices.protocol import Device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu")


@pytest.fixture(scope="module")
def found(device: Device) -> DeviceLimits:
    said: list[str] = []
    measured = limits.measure_limits(device, quick=True, progress=said.append)
    assert said
    return measured


def test_every_number_is_there_or_has_a_reason(found: DeviceLimits) -> None:
    for limit in [*found.launching, *found.streams]:
        figure = limit.figure
        assert (figure.interval is None) == bool(figure.refused), limit
        if figure.value is not None:
            assert figure > 0
            assert figure.n > 0
            assert figure.low <= figure <= figure.high


def test_what_the_cpu_has_not_is_not_available(found: DeviceLimits) -> None:
    figures = {limit.name: limit.figure for limit in found.launching}
    absent = figures.pop("kernel in a replayed graph")
    assert absent.value is None
    assert "the CPU has no graphs" in absent.refused
    assert all(figure.value is not None for figure in figures.values())
    ours, torchs = (limit.figure for limit in found.streams)
    assert ours.value == 128
    assert (torchs.value, torchs.refused) == (None, "torch has no streams on the CPU")


def test_queues_are_counted_against_one_stream(found: DeviceLimits) -> None:
    if "queues" in found.refused:  # a busy machine; the next tests need none
        pytest.skip(found.refused["queues"])
    assert [row.streams for row in found.queues] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert found.queues[0].effective == 1
    for row in found.queues:
        assert row.time_ms > 0
        assert (row.effective.interval is None) == bool(row.effective.refused)
    assert found.most_at_once is max(found.queues, key=lambda row: row.effective)


def test_dispatch_is_probed_on_several_counts(found: DeviceLimits) -> None:
    assert [row.streams for row in found.dispatch] == [2, 8, 32]
    for row in found.dispatch:
        assert (row.delay.value is None) == bool(row.delay.refused), row


@pytest.mark.parametrize(("queues", "expected"), [(1, 1.0), (4, 4.0), (64, 64.0)])
def test_a_device_with_so_many_queues_is_seen_as_one(queues: int, expected: float) -> None:
    one_ms = 1_000_000
    times = {n: [one_ms * -(-n // queues)] * 7 for n in (1, 2, 4, 8, 16, 32, 64)}

    rows = [counted_at_once(n, times[n], times[n], times[1]) for n in times]

    assert max(row.effective for row in rows) == expected
    assert rows[0].effective.interval == (1.0, 1.0)


def test_a_kernel_that_is_too_short_to_count_with_is_refused() -> None:
    class Disturbed(HostDevice):
        calibrated = False

        def kernel_of(self, duration_ns: int, *, waves: int = 0) -> Callable[[], None]:
            first, self.calibrated = not self.calibrated, True
            return (lambda: None) if first else super().kernel_of(duration_ns, waves=waves)

    with pytest.raises(DeviceError, match=r"meant to last 2000 ms lasted \d"):
        limits.queues_at_once(Disturbed(), 1, 2_000_000_000)


def test_without_any_queue_counted_there_is_no_most() -> None:
    assert DeviceLimits([], [], [], [], [], {"queues": "why"}).most_at_once is None


def test_what_fails_keeps_its_reason_and_costs_no_other() -> None:
    said: list[str] = []

    class Failing(HostDevice):
        def open_streams(self, count: int, *given: Any, **more: Any) -> HostPool:
            if said[-1].startswith("counting queues"):
                raise RuntimeError("a runtime's own words")
            if said[-1].startswith(("timing: launch and sync", "timing dispatch")):
                raise DeviceError("the device went away")
            return super().open_streams(count, *given, **more)

    found = limits.measure_limits(Failing(), quick=True, progress=said.append)

    by_name = {limit.name: limit.figure for limit in found.launching}
    assert by_name["launch and synchronise"].refused == "the device went away"
    assert by_name["launch, one kernel each"].value is not None
    assert found.queues == []
    assert found.refused == {"queues": "RuntimeError: a runtime's own words"}
    gone = Estimate(unit="us", refused="the device went away")
    assert found.dispatch[0] == DispatchDelay(2, gone, gone, gone)


def test_launches_that_block_are_refused_instead_of_tried_forever() -> None:
    class Done(HostEvent):
        def query(self) -> bool:
            self.synchronize()
            return True

    class Blocking(HostDevice):
        def new_event(self) -> HostEvent:
            return Done()

        def kernel_of(self, duration_ns: int, *, waves: int = 0) -> Callable[[], None]:
            return lambda: None

    with pytest.raises(DeviceError, match=r"could not be enqueued .* launches wait"):
        limits.queues_at_once(Blocking(), 1)
