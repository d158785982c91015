"""Compare the simulated H200 with a measured one, and print a table of docs/evidence/simulated.md.

    python -m tests.parts.devices.simulated.calibration

Measured figures are of one H200 (driver 580, torch 2.11) on a virtual machine with 16 cores. This
program measures nothing itself. Co-located tenants: `against_measured`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import torch

from pytest_hwqueue.parts.devices.simulated.colocation import (
    ModelledTenant,
    SharedDevice,
    run_tenants,
)
from pytest_hwqueue.parts.devices.simulated.costs import KernelWork
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.pool import SimulatedPool
from pytest_hwqueue.parts.devices.simulated.profile import Profile, RequestHost

_NS_PER_S = 1_000_000_000
_LAUNCHES, _NODES = 256, 1000
# Of one Python thread that launches small kernels: 92k/s.
_THREAD_LAUNCH_NS = 10_870

Launchable = Callable[[], object]


class CalibrationRow(NamedTuple):
    """One figure, measured and simulated."""

    what: str
    unit: str
    measured: float
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured


def calibration() -> Iterator[CalibrationRow]:
    """Compute every row from the profile ``h200``; sets torch to products without TF32."""
    torch.set_float32_matmul_precision("highest")
    device = SimulatedDevice("h200")
    small = device.kernel_of(device.profile.multiprocessing.kernel_floor_ns.value)
    yield from _host_rows(device, small)
    yield from _rate_rows(device, small)
    yield from _dispatch_rows(device)
    yield from _long_kernel_rows(device)


def _host_rows(device: SimulatedDevice, small: Launchable) -> Iterator[CalibrationRow]:
    with device.open_streams(1) as pool:
        (stream,) = pool.streams
        call_ns = _host_ns(device, partial(stream.launch, lambda: None))
        launches_ns = _host_ns(device, partial(stream.launch, _repeated(small, _LAUNCHES)))
        record_ns = _host_ns(device, stream.record)
        both_ns = _span_ns(device, pool, partial(stream.launch, small))
        replay = pool.capture(0, partial(stream.launch, _repeated(small, _NODES)))
        graph_ns = _device_ns(device, pool, 0, replay)
    for what, measured, ns in (
        ("launch of a small kernel", 7.0, (launches_ns - call_ns) / _LAUNCHES),
        ("event record", 6.2, record_ns),
        ("launch and synchronise", 14.3, both_ns - call_ns),
        ("kernel inside a replayed graph", 0.86, graph_ns / _NODES),
    ):
        yield CalibrationRow(what, "µs", measured, ns / 1e3)


def _rate_rows(device: SimulatedDevice, small: Launchable) -> Iterator[CalibrationRow]:
    for streams, *measured in (
        (1, 52e3, 140e3, 92e3, 931e3, 103e3),
        (8, 38e3, 107e3, 39e3, 4168e3, 806e3),
        (32, 40e3, 107e3, 48e3, 5495e3, 2615e3),
    ):
        with device.open_streams(streams) as pool:
            rate = partial(_rate, device, pool)
            ten = device.kernel_of(10_000)
            graphs = [
                pool.capture(0, partial(pool.streams[0].launch, _repeated(kernel, _NODES)))
                for kernel in (small, ten)
            ]
            simulated = {
                "eager, alternating": rate(small, _LAUNCHES, _LAUNCHES),
                "eager, stream by stream": rate(_repeated(small, _LAUNCHES), 1, _LAUNCHES),
                "eager, a Python thread per stream": _thread_rate(device.profile, streams),
                "a graph per stream, small kernels": rate(graphs[0], 1, _NODES),
                "a graph per stream, kernels of 10 µs": rate(graphs[1], 1, _NODES),
            }
        for (what, found), was in zip(simulated.items(), measured, strict=True):
            yield CalibrationRow(f"{what}, {_on(streams)}", "kernels/s", was, found)


def _rate(
    device: SimulatedDevice, pool: SimulatedPool, launched: Launchable, rounds: int, kernels: int
) -> float:
    ns = _span_ns(device, pool, _round_robin(pool, launched, rounds))
    return kernels * len(pool.streams) * 1e9 / ns


def _thread_rate(profile: Profile, threads: int) -> float:
    works = (KernelWork(profile.multiprocessing.kernel_floor_ns.value),) * _LAUNCHES
    tenants = [
        ModelledTenant(str(index), works, _THREAD_LAUNCH_NS, synchronise_ns=0)
        for index in range(threads)
    ]
    host = RequestHost(handover_ns=profile.host.lock_handover_ns.value)
    shared = SharedDevice(profile.hardware(), host=host, threads=True)
    found = run_tenants(shared, tenants, _NS_PER_S)
    return _LAUNCHES * sum(len(times.finished_ns) for times in found)


def _dispatch_rows(device: SimulatedDevice) -> Iterator[CalibrationRow]:
    for streams, ready_us, spread_us in (
        (1, 1.1, None), (2, 1.4, 0.4), (4, 2.8, 2.7), (8, 3.4, 6.7), (16, 3.1, 7.7),
        (32, 3.5, 11.4),
    ):  # fmt: skip
        with device.open_streams(streams) as pool:
            timeline = pool.held_timeline(_round_robin(pool, device.kernel_of(50_000), 20))
        assert timeline.released_ns is not None
        last: dict[int, int] = {}
        delays, firsts = [], []
        for ran in timeline.kernels:
            if ran.stream not in last:
                firsts.append(ran.start_ns)
            delays.append(ran.start_ns - last.get(ran.stream, timeline.released_ns))
            last[ran.stream] = ran.end_ns
        what = f"from ready to start, {_on(streams)}"
        yield CalibrationRow(what, "µs", ready_us, median(delays) / 1e3)
        if spread_us is not None:
            spread = (max(firsts) - min(firsts)) / 1e3
            yield CalibrationRow(
                f"first starts spread over, {_on(streams)}", "µs", spread_us, spread
            )


def _long_kernel_rows(device: SimulatedDevice) -> Iterator[CalibrationRow]:
    sleep = device.kernel_of(2_000_000)
    with device.open_streams(32) as pool:
        for asked, measured in ((32, 2.47), (64, 4.48), (128, 8.48)):
            ns = _span_ns(device, pool, _round_robin(pool, sleep, asked // 32))
            what = f"sleeps of 2 ms, {asked} over the 32 handles of torch's own pool"
            yield CalibrationRow(what, "ms", measured, ns / 1e6)
    for dtype, name, measured in (
        (torch.float32, "fp32 without TF32", 52.0), (torch.bfloat16, "bf16", 790.0),
    ):  # fmt: skip
        with device.open_streams(1) as pool:
            ns = _device_ns(device, pool, 0, _product(dtype))
        what = f"matrix product of 8192, {name}"
        yield CalibrationRow(what, "TFLOP/s", measured, 2 * 8192**3 / ns / 1e3)
    for priority, what, measured in ((0, "equal", 5.5), (1, "higher", 0.78)):
        with device.open_streams(5, [0, 0, 0, 0, priority]) as pool:
            products = _product(torch.bfloat16)
            for stream in pool.streams[:4] * 3:
                stream.launch(products)
            ns = _device_ns(device, pool, 4, device.kernel_of(2_000))
            pool.synchronize()
        yield CalibrationRow(f"convoy, tiny kernel of {what} priority", "ms", measured, ns / 1e6)


def table(rows: list[CalibrationRow]) -> str:
    """Return the table as Markdown; rows that are off by more than 2× say so."""
    lines = ["| figure | unit | measured | simulated | ratio | |", "|---|---|---|---|---|---|"]
    for row in rows:
        remark = "" if 0.5 <= row.ratio <= 2 else "off by more than 2×"
        both = f"{printed(row.measured)} | {printed(row.simulated)}"
        lines.append(f"| {row.what} | {row.unit} | {both} | {row.ratio:.2f} | {remark} |")
    return "\n".join(lines)


def printed(value: float) -> str:
    """Return three digits, or all of a whole number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _on(streams: int) -> str:
    return f"on {streams} stream{'s' * (streams > 1)}"


def _repeated(kernel: Launchable, times: int) -> Launchable:
    def run() -> None:
        for _ in range(times):
            kernel()

    return run


def _round_robin(pool: SimulatedPool, launched: Launchable, rounds: int) -> Callable[[], None]:
    def enqueue() -> None:
        for stream in pool.streams * rounds:
            stream.launch(launched)

    return enqueue


def _product(dtype: torch.dtype) -> Launchable:
    a, b, out = (torch.empty(8192, 8192, dtype=dtype) for _ in range(3))
    return partial(torch.mm, a, b, out=out)


def _host_ns(device: SimulatedDevice, action: Launchable) -> int:
    before = device.clock_ns()
    action()
    return device.clock_ns() - before


def _span_ns(device: SimulatedDevice, pool: SimulatedPool, enqueue: Launchable) -> int:
    def both() -> None:
        enqueue()
        pool.synchronize()

    pool.synchronize()
    return _host_ns(device, both)


def _device_ns(
    device: SimulatedDevice, pool: SimulatedPool, stream: int, launched: Launchable
) -> int:
    """Time between events on a stream around what is launched on it."""
    on = pool.streams[stream]
    start = on.record(device.new_event())
    on.launch(launched)
    end = on.record(device.new_event())
    end.synchronize()
    return device.elapsed_ns(start, end)


if __name__ == "__main__":
    print(table(list(calibration())))
