"""Back to back, a graph's iterations take what bounds them: the kernels, or launching them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.figures.of_cell import find_sweeps, scaling_of, throughputs
from pytest_hwqueue.data.records.cell import BackToBack, RunRecord, Samples
from pytest_hwqueue.engine.cell.measured_pass import back_to_back, block_iterations
from pytest_hwqueue.engine.cell.program import graph
from pytest_hwqueue.parts.devices.protocol import Device
from pytest_hwqueue.parts.devices.simulated.costs import KernelWork

from .conftest import Bench, on_each

BLOCKS = 50
# Events between blocks, and the last wait.
TOLERANCE = 0.03


@settings(max_examples=7, derandomize=True)
@given(
    streams=st.integers(1, 24), kernel_us=st.integers(20, 60), launch_us=st.integers(2, 9),
    iterations=st.integers(4, 6),
)  # fmt: skip
@example(streams=2, kernel_us=60, launch_us=2, iterations=5)  # bounded by the device
@example(streams=24, kernel_us=20, launch_us=9, iterations=5)  # bounded by launching
def test_pace_is_that_of_the_slower_of_device_and_host(
    bench: Bench, streams: int, kernel_us: int, launch_us: int, iterations: int
) -> None:
    free = dict.fromkeys(
        ("launch_call_ns", "graph_node_launch_ns", "graph_gap_ns", "graph_start_ns", "start_ns",
         "event_record_ns", "stream_wait_ns"), 0,
    )  # fmt: skip
    device = cast(Device, bench.device(connections=64, graph_launch_ns=launch_us * 1000, **free))
    launched = bench.launchable(cast(Any, device), *[KernelWork(kernel_us * 1000)] * 3)
    with device.open_streams(streams) as pool:
        program = graph(device, pool, on_each(launched), "with others")
        blocks = back_to_back(device, pool, program, iterations)
    truth_ns = 1000 * max(3 * kernel_us, streams * launch_us)
    assert (len(blocks.blocks_ns), blocks.iterations) == (BLOCKS, iterations)
    assert blocks.launching_ns == 1000 * streams * launch_us
    assert sum(blocks.blocks_ns) / BLOCKS / iterations == pytest.approx(truth_ns, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("iteration_ns", "max_time_ns", "iterations"),
    [
        pytest.param(50_000, 20 * 10**9, 160, id="0.4 s in blocks"),
        pytest.param(39_000_000, 20 * 10**9, 1, id="a tenth of the time is enough for 50"),
        pytest.param(41_000_000, 20 * 10**9, 0, id="too long"),
        pytest.param(50_000, 10**9, 40, id="a tenth of a short time"),
        pytest.param(0, 10**9, 2_000_000, id="too fast for the clock"),
    ],
)
def test_blocks_take_a_tenth_of_the_time_at_most(
    iteration_ns: int, max_time_ns: int, iterations: int
) -> None:
    assert block_iterations(iteration_ns, max_time_ns) == iterations


def samples(host_ns: int, enqueue_ns: int, block_ns: int = 0, iterations: int = 10) -> Samples:
    """Iterations that were waited for, and blocks of others back to back if they took any time."""
    return Samples(
        host_ns=[host_ns] * 100, device_ns=[host_ns] * 100, enqueue_ns=[enqueue_ns] * 100,
        pace_ns=[],
        back_to_back=BackToBack(
            blocks_ns=[block_ns] * BLOCKS, iterations=iterations, launching_ns=enqueue_ns // 2
        ) if block_ns else None,
    )  # fmt: skip


def test_throughput_is_that_back_to_back_where_it_was_measured() -> None:
    given = samples(host_ns=100_000, enqueue_ns=30_000, block_ns=750_000)
    assert given.pace() == (10, [750_000] * BLOCKS)
    (rate,) = throughputs(given, {"kernels": 48.0})
    assert float(rate) == pytest.approx(48 * 1e9 / 75_000)
    assert rate.interval is not None
    assert given.back_to_back_shares() == pytest.approx((15 / 75, 1 - 75 / 100))
    waited = samples(host_ns=100_000, enqueue_ns=30_000)
    (rate,) = throughputs(waited, {"kernels": 48.0})
    assert float(rate) == pytest.approx(48 * 1e9 / 100_000)
    assert waited.back_to_back_shares() is None


def test_scaling_compares_like_with_like(bench: Bench) -> None:
    device = bench.device()
    launched = bench.launchable(device, KernelWork(20_000))
    one, two = (
        bench.measure(device, streams, on_each(launched), work={"kernels": streams}, iterations=60)
        for streams in (1, 2)
    )

    def rates(blocks: tuple[int, int]) -> list[float]:
        given: list[RunRecord] = [
            record.model_copy(update={"samples": samples(100_000, 30_000, block)})
            for record, block in zip((one, two), blocks, strict=True)
        ]
        assert find_sweeps(given[:1]) == []
        (sweep,) = find_sweeps(given[::-1])
        assert [record.cell.streams for record in sweep] == [1, 2]
        return [float(point.throughput) for point in scaling_of(sweep).points]

    assert rates((750_000, 750_000)) == pytest.approx([1e9 / 75_000, 2e9 / 75_000])
    assert rates((750_000, 0)) == pytest.approx([1e9 / 100_000, 2e9 / 100_000])
