"""Compare the simulated H200 with a measured one, and print the table of docs/simulated.md.

    python -m tests.devices.simulated.calibration

Measured figures are of one H200 (driver 580, torch 2.11) on a virtual machine with 16 cores. This
program measures nothing itself. Co-located tenants: `against_measured`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch

from pytest_hwqueue.devices.simulated.colocation import ModelledTenant, run_tenants
from pytest_hwqueue.devices.simulated.costs import KernelWork
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.devices.simulated.pool import SimulatedPool
from pytest_hwqueue.devices.simulated.profile import Profile, RequestHost

_NS_PER_S = 1_000_000_000
_LAUNCHES = 256


@dataclass(frozen=True)
class CalibrationRow:
    """One figure, measured and simulated.

    Attributes:
        what: the figure.
        unit: its unit.
        measured: on the H200.
        simulated: by the model.

    """

    what: str
    unit: str
    measured: float
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured

    @property
    def verdict(self) -> str:
        """Whether the model is within a factor of two: ``near`` or ``off by more than 2×``."""
        return "near" if 0.5 <= self.ratio <= 2 else "off by more than 2×"


def calibration() -> list[CalibrationRow]:
    """Compute every row from the profile ``h200``; sets torch to products without TF32."""
    torch.set_float32_matmul_precision("highest")
    device = SimulatedDevice("h200")
    return [
        *_host_rows(device),
        *_rate_rows(device),
        *_dispatch_rows(device),
        *_long_kernel_rows(device),
    ]


def _host_rows(device: SimulatedDevice) -> Iterator[CalibrationRow]:
    small = device.kernel_of(device.profile.multiprocessing.kernel_floor_ns.value)
    with device.open_streams(1) as pool:
        stream = pool.streams[0]
        call_ns = _host_ns(device, lambda: stream.launch(_nothing))
        launch_ns = _host_ns(device, lambda: stream.launch(_repeated(small, _LAUNCHES))) - call_ns
        record_ns = _host_ns(device, stream.record)
        pool.synchronize()

        def launch_and_wait() -> None:
            stream.launch(small)
            pool.synchronize()

        both_ns = _host_ns(device, launch_and_wait) - call_ns
        replay = pool.capture(0, lambda: stream.launch(_repeated(small, 1000)))
        graph_ns = _device_ns(device, pool, lambda: stream.launch(replay))
    yield CalibrationRow("launch of a small kernel", "µs", 7.0, launch_ns / _LAUNCHES / 1e3)
    yield CalibrationRow("event record", "µs", 6.2, record_ns / 1e3)
    yield CalibrationRow("launch and synchronise", "µs", 14.3, both_ns / 1e3)
    yield CalibrationRow("kernel inside a replayed graph", "µs", 0.86, graph_ns / 1000 / 1e3)


def _rate_rows(device: SimulatedDevice) -> Iterator[CalibrationRow]:
    small = device.kernel_of(device.profile.multiprocessing.kernel_floor_ns.value)
    ten = device.kernel_of(10_000)
    for streams, alternating, by_stream, threads, graph, graph_ten in (
        (1, 52e3, 140e3, 92e3, 931e3, 103e3),
        (8, 38e3, 107e3, 39e3, 4168e3, 806e3),
        (32, 40e3, 107e3, 48e3, 5495e3, 2615e3),
    ):
        on = f"on {streams} streams"
        with device.open_streams(streams) as pool:
            ns = _span_ns(device, pool, _round_robin(pool, small, _LAUNCHES))
            rate = _LAUNCHES * streams * 1e9 / ns
            yield CalibrationRow(f"eager, alternating, {on}", "kernels/s", alternating, rate)
            ns = _span_ns(device, pool, _round_robin(pool, _repeated(small, _LAUNCHES), 1))
            rate = _LAUNCHES * streams * 1e9 / ns
            yield CalibrationRow(f"eager, stream by stream, {on}", "kernels/s", by_stream, rate)
            rate = _thread_rate(device.profile, streams)
            what = f"eager, a Python thread per stream, {on}"
            yield CalibrationRow(what, "kernels/s", threads, rate)
            for kernel, measured, what in (
                (small, graph, "small kernels"),
                (ten, graph_ten, "kernels of 10 µs"),
            ):
                rate = _graph_rate(device, pool, kernel)
                yield CalibrationRow(f"a graph per stream, {what}, {on}", "kernels/s", measured,
                                     rate)  # fmt: skip


# Of one Python thread that launches small kernels: 92k/s.
_THREAD_LAUNCH_NS = 10_870


def _thread_rate(profile: Profile, threads: int) -> float:
    work = KernelWork(profile.multiprocessing.kernel_floor_ns.value)
    tenants = [
        ModelledTenant(str(index), (work,) * _LAUNCHES, _THREAD_LAUNCH_NS, synchronise_ns=0)
        for index in range(threads)
    ]
    host = RequestHost(handover_ns=profile.host.lock_handover_ns.value)
    results = run_tenants(
        profile.hardware(), tenants, _NS_PER_S, "together", host=host, threads=True
    )
    return _LAUNCHES * sum(len(result.finished_ns) for result in results)


def _graph_rate(device: SimulatedDevice, pool: SimulatedPool, kernel: Callable[[], None]) -> float:
    nodes, stream = 1000, pool.streams[0]
    replay = pool.capture(0, lambda: stream.launch(_repeated(kernel, nodes)))
    ns = _span_ns(device, pool, _round_robin(pool, replay, 1))
    return nodes * len(pool.streams) * 1e9 / ns


def _dispatch_rows(device: SimulatedDevice) -> Iterator[CalibrationRow]:
    kernel = device.kernel_of(50_000)
    for streams, ready_us, spread_us in (
        (1, 1.1, None), (2, 1.4, 0.4), (4, 2.8, 2.7), (8, 3.4, 6.7), (16, 3.1, 7.7),
        (32, 3.5, 11.4),
    ):  # fmt: skip
        with device.open_streams(streams) as pool:
            timeline = pool.held_timeline(_round_robin(pool, kernel, 20))
        assert timeline.released_ns is not None
        last: dict[int, int] = {}
        delays, firsts = [], []
        for ran in timeline.kernels:
            if ran.stream not in last:
                firsts.append(ran.start_ns)
            delays.append(ran.start_ns - last.get(ran.stream, timeline.released_ns))
            last[ran.stream] = ran.end_ns
        on = f"on {streams} streams"
        yield CalibrationRow(f"from ready to start, {on}", "µs", ready_us, median(delays) / 1e3)
        if spread_us is not None:
            spread = (max(firsts) - min(firsts)) / 1e3
            yield CalibrationRow(f"first starts spread over, {on}", "µs", spread_us, spread)


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
            stream = pool.streams[0]
            product = _product(dtype)
            ns = _device_ns(device, pool, lambda s=stream, p=product: s.launch(p))  # type: ignore[misc]
        rate = 2 * 8192**3 / ns / 1e3
        yield CalibrationRow(f"matrix product of 8192, {name}", "TFLOP/s", measured, rate)
    for priority, what, measured in ((0, "equal", 5.5), (1, "higher", 0.78)):
        with device.open_streams(5, [0, 0, 0, 0, priority]) as pool:
            products, tiny = _product(torch.bfloat16), device.kernel_of(2_000)
            for _ in range(3):
                for stream in pool.streams[:4]:
                    stream.launch(products)
            ns = _device_ns(device, pool, lambda p=pool, t=tiny: p.streams[4].launch(t), last=4)  # type: ignore[misc]
            pool.synchronize()
        yield CalibrationRow(f"convoy, tiny kernel of {what} priority", "ms", measured, ns / 1e6)


def _printed(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    """Print the table as Markdown."""
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    print("| figure | unit | measured | simulated | ratio | |\n|---|---|---|---|---|---|")
    for row in calibration():
        remark = "" if row.verdict == "near" else row.verdict
        measured, simulated = _printed(row.measured), _printed(row.simulated)
        print(
            f"| {row.what} | {row.unit} | {measured} | {simulated} | {row.ratio:.2f} | {remark} |"
        )


def _nothing() -> None:
    """Enqueue nothing: what is left is the cost of the call."""


def _repeated(kernel: Callable[[], None], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            kernel()

    return run


def _round_robin(
    pool: SimulatedPool, kernel: Callable[[], None], rounds: int
) -> Callable[[], None]:
    def enqueue() -> None:
        for _ in range(rounds):
            for stream in pool.streams:
                stream.launch(kernel)

    return enqueue


def _product(dtype: torch.dtype) -> Callable[[], None]:
    a, b, out = (torch.empty(8192, 8192, dtype=dtype) for _ in range(3))

    def run() -> None:
        torch.mm(a, b, out=out)

    return run


def _host_ns(device: SimulatedDevice, action: Callable[[], object]) -> int:
    before = device.clock_ns()
    action()
    return device.clock_ns() - before


def _span_ns(device: SimulatedDevice, pool: SimulatedPool, enqueue: Callable[[], None]) -> int:
    pool.synchronize()
    before = device.clock_ns()
    enqueue()
    pool.synchronize()
    return device.clock_ns() - before


def _device_ns(
    device: SimulatedDevice, pool: SimulatedPool, enqueue: Callable[[], None], last: int = 0
) -> int:
    """Time between events on one stream around what is enqueued on it."""
    start = pool.streams[last].record(device.new_event())
    enqueue()
    end = pool.streams[last].record(device.new_event())
    end.synchronize()
    return device.elapsed_ns(start, end)


if __name__ == "__main__":
    main()
