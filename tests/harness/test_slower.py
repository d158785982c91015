"""Launches of real devices that are planted slower; shown on a device whose time is exact."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_hwqueue.devices.kinds import open_device
from pytest_hwqueue.devices.protocol import Device, Stream
from pytest_hwqueue.harness.program import SlowedLaunches, slowed_request


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("sim:h200")


@pytest.mark.parametrize("percent", [10, 100, 4900, 99_900])
def test_each_launch_takes_so_much_longer(device: Device, percent: float) -> None:
    short, long = device.kernel_of(2_000_000), device.kernel_of(30_000_000)
    spans = []

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream, kernel in zip(streams, (short, long), strict=True):
            begin, end = device.new_event(), device.new_event()
            stream.record(begin)
            stream.launch(kernel)
            stream.record(end)
            spans.append((begin, end))

    slowed = SlowedLaunches(device, enqueue, percent)
    took_ns = []
    with device.open_streams(2, None) as pool:
        for _ in range(4):
            spans.clear()
            slowed(pool.streams)
            pool.synchronize()
            took_ns.append([device.elapsed_ns(*span) for span in spans])
    plain, timed, *slower = took_ns
    assert timed == pytest.approx(plain, rel=0.01)  # the second iteration is only timed
    for iteration in slower:
        for before, after in zip(plain, iteration, strict=True):
            assert after / before - 1 == pytest.approx(percent / 100, rel=0.1)


def test_a_request_takes_so_much_longer_as_a_whole(device: Device) -> None:
    kernel, request_ns = device.kernel_of(10_000_000), 10_000_000

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(kernel)

    slower = slowed_request(device, enqueue, ["slower:50", "slower:25"], request_ns)
    took_ns = []
    with device.open_streams(2, None) as pool:
        for each in (enqueue, slower):
            began_ns = device.clock_ns()
            each(pool.streams)
            pool.synchronize()
            took_ns.append(device.clock_ns() - began_ns)
    assert took_ns[1] - took_ns[0] == pytest.approx(0.75 * request_ns, rel=0.05)
