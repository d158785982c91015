"""Compare the simulated H200 with a measured one, and print the table of docs/simulated.md.

    python tools/simulated_calibration.py [--duration SECONDS]

Measured figures are of one H200 (driver 580, torch 2.11) on a virtual machine with 16 cores; the
co-location rows are of one short run per mode. This program measures nothing itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from pytest_hwqueue.devices.simulated.colocation import ModelledTenant, Placement, run_tenants
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.devices.simulated.pool import SimulatedPool
from pytest_hwqueue.devices.simulated.profile import Profile
from pytest_hwqueue.devices.simulated.work import KernelWork

_NS_PER_S = 1_000_000_000
_LAUNCHES = 256
_NOT_MODELLED = "not modelled"


@dataclass(frozen=True)
class CalibrationRow:
    """One figure, measured and simulated.

    Attributes:
        what: the figure.
        unit: its unit.
        measured: on the H200.
        simulated: by the model; None if the model has nothing for it.
        note: why it is missing or off.

    """

    what: str
    unit: str
    measured: float
    simulated: float | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Simulated over measured."""
        return None if self.simulated is None else self.simulated / self.measured

    @property
    def verdict(self) -> str:
        """Whether the model is within a factor of two: ``near``, ``off by more than 2×``, ...."""
        if self.ratio is None:
            return _NOT_MODELLED
        return "near" if 0.5 <= self.ratio <= 2 else "off by more than 2×"


def calibration(duration_s: float = 20.0) -> list[CalibrationRow]:
    """Compute every row from the profile ``h200``; tenants run for ``duration_s`` virtual s."""
    device = SimulatedDevice("h200")
    return [
        *_host_rows(device),
        *_rate_rows(device),
        *_dispatch_rows(device),
        *_long_kernel_rows(device),
        *_colocation_rows(device.profile, duration_s),
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
            yield CalibrationRow(
                f"eager, a Python thread per stream, {on}", "kernels/s", threads, None,
                "the host is modelled as one thread",
            )  # fmt: skip
            for kernel, measured, what in (
                (small, graph, "small kernels"),
                (ten, graph_ten, "kernels of 10 µs"),
            ):
                rate = _graph_rate(device, pool, kernel)
                yield CalibrationRow(f"a graph per stream, {what}, {on}", "kernels/s", measured,
                                     rate)  # fmt: skip


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


# ResNet-18 b1: 70 kernels of about 4 µs, enqueued in the 2.5 ms that a request takes alone.
_HIGH = ModelledTenant(
    "high", (KernelWork(4_000, 32, 1),) * 70, host_ns=35_000, synchronise_ns=20_000,
    every_ns=50_000_000,
)  # fmt: skip
_BATCH = 1024


# Three kernels each: float32 images are turned into the layout the library computes in, and back.
_CONVOLUTION_NS = 1_570_000
# A pass over the activations of ResNet-50's first stage, b1024 in float32: 2 x 3.3 GB.
_FIRST_STAGE_PASS_NS = 1_600_000


def _low() -> ModelledTenant:
    """ResNet-50 b1024 in the 133 ms of 7690 img/s.

    From the model's structure: 3, 4, 6 and 3 blocks in four stages, each with half the activations
    of the one before; passes over activations cost what the memory's bandwidth says, and the
    convolutions share the rest of the 133 ms evenly. How long single kernels took was not measured.
    """
    layout = KernelWork(_CONVOLUTION_NS // 4, 400_000)
    convolution = [layout, KernelWork(_CONVOLUTION_NS // 2, 50_000, 8), layout]
    kernels: list[KernelWork] = []
    for stage, blocks in enumerate((3, 4, 6, 3)):
        whole_ns = _FIRST_STAGE_PASS_NS >> stage
        whole = KernelWork(whole_ns, 800_000 >> stage)
        quarter = KernelWork(whole_ns // 4, 200_000 >> stage)
        add = KernelWork(whole_ns * 3 // 2, 800_000 >> stage)
        narrow = [*convolution, quarter, quarter]
        kernels += [*narrow, *narrow, *convolution, whole, add, whole] * blocks
        kernels += [*convolution, whole]  # the stage's shortcut
    return ModelledTenant("low", tuple(kernels), host_ns=15_000, synchronise_ns=20_000)


def _colocation_rows(profile: Profile, duration_s: float) -> Iterator[CalibrationRow]:
    trip_ns = profile.sharing.preemption_round_trip_ns.value
    modes: Sequence[tuple[str, Placement | None, int, int | None, tuple[float, ...]]] = (
        ("alone", "together", 0, None, (2.5, 4.0)),
        ("native, two processes", "time-slices", 0, None, (3.9, 5.8, 7530)),
        ("native, two threads", "together", 0, None, (20.1, 34.3, 7670)),
        ("stream priority, threads", "together", 1, None, (3.2, 5.1, 7672)),
        ("MPS", "together", 0, None, (19.8, 34.2, 7685)),
        ("MPS with client priority", "together", 1, None, (2.7, 5.0, 7682)),
        ("MPS, low at 80 % of the SMs", None, 0, None, (2.3, 3.8, 6462)),
        ("XSched level 1, threshold 4", "time-slices", 1, 4, (3.6, 11.6, 7336)),
        ("XSched level 1, threshold 1", "time-slices", 1, 1, (2.6, 6.2, 5786)),
        ("XSched, low at level 3", None, 0, None, (4.7, 5.9, 7093)),
    )
    for mode, placement, priority, threshold, measured in modes:
        simulated: list[float | None] = [None] * len(measured)
        if placement is not None:
            tenants = [replace(_HIGH, priority=priority)]
            if len(measured) == 3:
                tenants.append(replace(_low(), in_flight=threshold or 1))
            hardware = profile.hardware()
            ns = round(duration_s * _NS_PER_S)
            scheduled_ns = trip_ns if threshold is not None else None
            results = run_tenants(hardware, tenants, ns, placement, scheduled_ns)
            simulated[:2] = [
                _percentile_ms(results[0].latencies_ns, share) for share in (0.5, 0.99)
            ]
            if len(measured) == 3:
                simulated[2] = len(results[1].latencies_ns) * _BATCH / duration_s
        for what, unit, was, found in zip(
            ("high P50", "high P99", "low"), ("ms", "ms", "img/s"), measured, simulated,
            strict=False,
        ):  # fmt: skip
            note = "" if placement is not None else "no part of the model"
            yield CalibrationRow(f"{mode}: {what}", unit, was, found, note)


def _percentile_ms(latencies_ns: list[int], share: float) -> float:
    """Return the nearest-rank percentile in ms."""
    ordered = sorted(latencies_ns)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6


def _printed(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--duration", type=float, default=20.0, help="virtual s of co-located runs")
    print("| figure | unit | measured | simulated | ratio | |\n|---|---|---|---|---|---|")
    for row in calibration(parser.parse_args().duration):
        ratio = "—" if row.ratio is None else f"{row.ratio:.2f}"
        remark = "" if row.verdict == "near" else row.verdict
        remark += f": {row.note}" if row.note else ""
        measured, simulated = _printed(row.measured), _printed(row.simulated)
        print(f"| {row.what} | {row.unit} | {measured} | {simulated} | {ratio} | {remark} |")


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
