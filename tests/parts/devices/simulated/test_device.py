"""What streams, events, graphs and traces of the modelled device do beside their times."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.engine.cell.program import graph
from pytest_hwqueue.parts.devices.protocol import Device, Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.noise import NoiseModel

from .conftest import Bench


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice("h200")


def test_names_say_that_it_is_simulated(device: SimulatedDevice, tmp_path: Path) -> None:
    assert device.name == "simulated NVIDIA H200"
    assert SimulatedDevice("mi300x").name == "simulated AMD Instinct MI300X, not calibrated"
    assert (device.kind, device.label, device.connections) == ("sim", "sim:h200", 8)
    assert not device.capabilities.has_values
    path = tmp_path / "trace.json"
    with device.open_streams(2) as pool:
        pool.export_trace(lambda: pool.streams[1].launch(device.kernel_of(1_000)), str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert events[0]["args"]["name"] == device.name


def test_handles_are_distinct_and_priorities_in_the_devices_numbers(
    device: SimulatedDevice,
) -> None:
    with device.open_streams(64, [index % 8 for index in range(64)]) as pool:
        assert len({stream.handle for stream in pool.streams}) == 64
        assert pool.device_priorities()[:8] == [0, -1, -2, -3, -4, -5, -5, -5]


def test_polling_an_event_comes_to_an_end(device: SimulatedDevice) -> None:
    with device.open_streams(1) as pool:
        pool.streams[0].launch(device.kernel_of(10**9))
        event, polls = pool.streams[0].record(), 0
        while not event.query():
            polls += 1
    assert 0 < polls < 10
    assert device.clock_ns() >= 10**9


@pytest.mark.parametrize("waves", [0, 1, 3])
def test_kernels_that_fill_the_device_take_turns(device: SimulatedDevice, waves: int) -> None:
    kernel = device.kernel_of(1_000_000, waves=waves)
    with device.open_streams(2) as pool:
        for stream in pool.streams:
            stream.launch(kernel)
        pool.synchronize()
    assert device.clock_ns() == pytest.approx(2_000_000 if waves else 1_000_000, rel=0.05)


def test_an_iteration_across_streams_becomes_one_graph(device: SimulatedDevice) -> None:
    kernel = device.kernel_of(100_000)

    def iterate(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel)
        fork = streams[0].record()
        for stream in streams[1:]:
            stream.wait(fork)
            stream.launch(kernel)

    with device.open_streams(3) as pool:
        program = graph(cast(Device, device), pool, iterate)
        start = pool.streams[0].record(device.new_event())
        program.enqueue(pool.streams)
        end = pool.streams[0].record(device.new_event())
        pool.synchronize()
    assert 200_000 <= device.elapsed_ns(start, end) < 225_000


def test_the_host_waits_where_the_launch_queue_is_full(device: SimulatedDevice) -> None:
    kernel = device.kernel_of(1_000_000)
    with device.open_streams(1) as pool:
        for _ in range(1100):
            pool.streams[0].launch(kernel)
        assert device.clock_ns() > 70_000_000
        pool.synchronize()


def test_noise_is_seeded_and_off_unless_asked_for() -> None:
    def took(noise: NoiseModel | None) -> list[int]:
        device, ends = SimulatedDevice("h200", noise), []
        with device.open_streams(1) as pool:
            for _ in range(9):
                pool.streams[0].launch(device.kernel_of(100_000))
                pool.synchronize()
                ends.append(device.clock_ns())
        return ends

    plain, noisy = took(None), took(NoiseModel(seed=3, session=0.1, run=0.05, jitter=0.2))
    assert noisy == took(NoiseModel(seed=3, session=0.1, run=0.05, jitter=0.2)) != plain
    for other in (NoiseModel(4, session=0.1), NoiseModel(4, run=0.1), NoiseModel(4, jitter=0.1)):
        assert took(other) not in (plain, noisy)
    assert plain == took(NoiseModel(seed=3))


def _deadlock(device: SimulatedDevice) -> None:
    with device.open_streams(2) as pool:
        gate = device.new_event()
        gate.begin(pool)  # recorded by nobody
        pool.streams[0].wait(gate)
        pool.streams[1].launch(device.kernel_of(1))
        pool.streams[0].synchronize()


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (_deadlock, "deadlock"),
        (lambda device: device.open_streams(0), "at least 1"),
        (lambda device: device.open_streams(-1), "at least 1"),
        (lambda _: NoiseModel(0, session=1.0), "session"),
        (lambda _: NoiseModel(0, run=-0.1), "run"),
    ],
)
def test_what_cannot_be_is_refused(
    device: SimulatedDevice, refused: Callable[[SimulatedDevice], object], told: str
) -> None:
    with pytest.raises((DeviceError, ValueError), match=told):
        refused(device)


@pytest.mark.parametrize("sync_mode", ["per_iteration", "end_only"])
def test_only_a_slow_simulation_is_cut_short_and_says_so(bench: Bench, sync_mode: str) -> None:
    device = bench.device()
    kernel = device.kernel_of(10_000)

    def stopped(iterations: int, wall_ns: int) -> tuple[str, int]:
        record = bench.measure(
            device, 1, lambda streams: streams[0].launch(kernel), iterations=iterations,
            sync_mode=sync_mode, wall_ns=wall_ns,
        )  # fmt: skip
        assert len(record.judged_ns()) == record.iterations
        return record.stopped, record.iterations

    assert stopped(100, 30_000_000_000) == ("100 iterations", 100)
    reason, done = stopped(1000, 1_000)
    assert 0 < done < 1000
    assert reason.startswith("wall-time cap of 1e-06 s, after ")
    assert f"after {done} of 1000 iterations" in reason
